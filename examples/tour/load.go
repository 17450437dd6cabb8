package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// customers is how many buy at the same time. More requests than that queue up behind.
	customers = 300
	// stamina is how long a customer goes on coming back. A 409 says that others are being served; the shop
	// is given fewer tries to get over a 503.
	stamina = 2 * time.Minute
	tries   = 2
	// longestPause bounds how long a server can make a customer wait before the next try.
	longestPause = 3 * time.Second
)

type verdict int

const (
	failed verdict = iota // the zero value: nothing was heard
	bought
	refused
)

// answer is what a customer was told in the end.
type answer struct {
	order, product string
	verdict        verdict
	serial         int // of the unit bought
	busy           int // answers 409 on the way
	down           int // answers 503
	err            error
}

// buyAll sends n purchases, each to the next replica, and returns what came of them.
func buyAll(ctx context.Context, urls, products []string, n int, tally *tally) ([]answer, error) {
	answers := make([]answer, n)
	for i := range answers {
		answers[i] = answer{order: fmt.Sprintf("order-%d", i+1), product: products[i%len(products)]}
	}
	// Otherwise, with as many products as replicas, each product would have a replica to itself.
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
	var first error
	for _, a := range answers {
		if a.verdict == failed {
			lost++
			first = a.err
		}
	}
	if lost > 0 {
		return nil, fmt.Errorf("%d of %d requests failed, one of them so: %w", lost, n, first)
	}
	return answers, nil
}

// buy goes on until it has a yes or a no. Asking again after a 503, too, is safe because the shop recognises
// the order: the purchase may have gone through.
func buy(ctx context.Context, client *http.Client, shop string, a *answer, tally *tally) {
	defer func() {
		if ctx.Err() == nil {
			tally.answered(a)
		}
	}()
	for began := time.Now(); ; {
		pause, err := ask(ctx, client, shop, a)
		if err == nil {
			return
		}
		a.err = err
		if pause < 0 || a.down >= tries || time.Since(began) > stamina {
			return
		}
		tally.busy(a.product)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// ask sends the order once. With an error it says how long to pause before the next try, -1 for never.
func ask(ctx context.Context, client *http.Client, shop string, a *answer) (pause time.Duration, err error) {
	target := shop + "/products/" + url.PathEscape(a.product) + "/buy"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return -1, err
	}
	req.Header.Set("Idempotency-Key", a.order)
	resp, err := client.Do(req)
	if err != nil {
		return -1, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return -1, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		var r receipt
		if err := json.Unmarshal(body, &r); err != nil {
			return -1, err
		}
		if r.Product != a.product {
			return -1, errors.New("got a " + r.Product + " for a " + a.product)
		}
		a.verdict, a.serial = bought, r.Serial
		return 0, nil
	case http.StatusGone:
		a.verdict = refused
		return 0, nil
	case http.StatusConflict:
		a.busy++
		pause = retryAfter(resp)
	case http.StatusServiceUnavailable:
		a.down++
		pause = retryAfter(resp)
	default:
		pause = -1
	}
	return pause, fmt.Errorf("POST %s: %s: %s", target, resp.Status, body)
}

// retryAfter is what the server asks for, and a little more so that the customers do not come back all at
// once.
func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		seconds = 1
	}
	return min(time.Duration(seconds)*time.Second, longestPause) + rand.N(200*time.Millisecond)
}
