// Provider keeps three replicas of a service within the limit of a provider's API, 20 calls at a time, and gives no tenant more
// than 5 of them.
//
//	go run ./examples/provider
//
// The replicas send 60 calls at once, 24 of them of one tenant. It prints how many of them the provider had at a time, and when
// the tenants had their answers. The provider is in this process, and refuses with 429 what is above its limit. Redis is
// embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/redis/go-redis/v9"
)

func main() {
	if err := run(context.Background(), os.Stdout, startProvider(answerSoon)); err != nil {
		log.Fatal(err)
	}
}

// newClient makes what a replica calls the provider with. A call waits for its turn, at the longest until its context ends. It
// is over when the response has been read, or its body is closed.
func newClient(locker *holdfast.Locker) *http.Client {
	// A call that waits for one lock holds those whose keys come before it in byte order. So it must wait for its tenant's first,
	// and "by-tenant" comes before "provider". Otherwise the calls of one tenant would wait in the places of all.
	return &http.Client{Transport: httplock.Transport(locker, "provider", httplock.Host, nil, httplock.WithLimit(20),
		httplock.WithAlso("by-tenant", httplock.Header("X-Tenant"), holdfast.WithLimit(5)))}
}

func run(ctx context.Context, out io.Writer, api *provider) error {
	defer api.Close()
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" { // a Redis inside this process, to try it out
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // leases expire as time goes by
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	var clients []*http.Client
	for range 3 { // replicas, which have only Redis in common
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		locker, err := holdfast.New(rdb)
		if err != nil {
			return err
		}
		if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
			return err
		}
		defer locker.Shutdown(ctx)
		clients = append(clients, newClient(locker))
	}

	var all sync.WaitGroup
	errs, ends := make([]error, 60), make([]time.Duration, 60)
	began := time.Now()
	for i := range errs {
		tenant := "large"
		if i >= 24 {
			tenant = fmt.Sprint("small-", i%6)
		}
		all.Go(func() {
			errs[i] = call(ctx, clients[i%3], api.URL, tenant)
			ends[i] = time.Since(began).Round(time.Millisecond)
		})
	}
	all.Wait()
	api.report(out)
	fmt.Fprintf(out, "the small tenants had their answers after %v, the large one after %v\n", slices.Max(ends[24:]), slices.Max(ends[:24]))
	return errors.Join(errs...)
}

func call(ctx context.Context, client *http.Client, url, tenant string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Tenant", tenant)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // gives the turn to the next call
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
