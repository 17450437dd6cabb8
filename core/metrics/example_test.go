package metrics_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

func Example() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	m := metrics.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	locker, err := holdfast.New(rdb, holdfast.WithTrace(m.Trace()))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), holdfast.Key("order", "42"), func(context.Context) error {
		scrape := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
		for line := range strings.Lines(scrape.Body.String()) {
			if strings.HasPrefix(line, "holdfast_held") || strings.HasPrefix(line, "holdfast_refused") {
				fmt.Print(line)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// holdfast_held{resource="order"} 1
	// holdfast_refused_total{reason="busy",resource="order"} 0
	// holdfast_refused_total{reason="canceled",resource="order"} 0
	// holdfast_refused_total{reason="closed",resource="order"} 0
	// holdfast_refused_total{reason="self_deadlock",resource="order"} 0
	// holdfast_refused_total{reason="unavailable",resource="order"} 0
}
