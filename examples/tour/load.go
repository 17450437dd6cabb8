package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

const (
	// customers is how many buy at the same time. Further requests queue up.
	customers = 300
	// stamina is how long a customer keeps coming back after a 409, which says that others are being served. After a 503 the
	// shop gets fewer tries.
	stamina = 2 * time.Minute
	tries   = 10
)

// buyAll sends n purchases, each to the next replica, and returns the answers.
func buyAll(ctx context.Context, urls, products []string, n int, tally *tally) ([]shop.Answer, error) {
	answers := make([]shop.Answer, n)
	for i := range answers {
		answers[i] = shop.Answer{Order: fmt.Sprintf("order-%d", i+1), Product: products[i%len(products)]}
	}
	// Without a shuffle, and with as many products as replicas, each product would have a replica to itself.
	rand.Shuffle(n, func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })

	transport := &http.Transport{MaxIdleConnsPerHost: customers}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, customers) {
		wg.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= n || ctx.Err() != nil {
					return
				}
				buy(ctx, client, urls[i%len(urls)], &answers[i], tally)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var lost int
	var last error
	for _, a := range answers {
		if a.Verdict == shop.Failed {
			lost++
			last = a.Err
		}
	}
	if lost > 0 {
		return nil, fmt.Errorf("%d of %d requests failed, the last of them with: %w", lost, n, last)
	}
	return answers, nil
}

// buy goes on until it has a yes or a no. It can ask again even after a 503, when the purchase might have gone through,
// because the shop recognizes the order.
func buy(ctx context.Context, client *http.Client, url string, a *shop.Answer, tally *tally) {
	defer func() {
		if ctx.Err() == nil {
			tally.answered(a)
		}
	}()
	for began := time.Now(); ; {
		pause, err := shop.Ask(ctx, client, url, a)
		if err == nil {
			return
		}
		a.Err = err
		if pause < 0 || a.Down >= tries || time.Since(began) > stamina {
			return
		}
		tally.busy(a.Product)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
