// Metrics exports to Prometheus which calls wait for locks, and for how long, which locks are held, lost and refused. Package
// core/metrics has the series, a dashboard for Grafana and alert rules.
//
//	go run ./examples/metrics
//	curl localhost:8080/metrics
//
// Four callers want one order. A report hangs and loses its lock, and the program prints a warning. Then it serves the
// metrics at LISTEN_ADDR, localhost:8080 by default, until Ctrl-C. Redis is embedded (miniredis), unless REDIS_ADDR names
// one.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
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
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	counts := metrics.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(counts)
	locker, err := holdfast.New(rdb,
		holdfast.WithTrace(counts.Trace()),
		// Traces add up. This one logs losses, long holds and errors of Redis as warnings, and the rest at level debug.
		holdfast.WithTrace(holdfast.LogTrace(slog.New(slog.NewTextHandler(out, nil)))))
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()
	if err := work(ctx, locker); err != nil {
		return err
	}

	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN_ADDR"), "localhost:8080"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second}
	fmt.Fprintf(out, "listening on http://%s/metrics\n", listener.Addr())
	go func() { _ = server.Serve(listener) }()
	<-ctx.Done()
	return server.Shutdown(context.WithoutCancel(ctx))
}

func work(ctx context.Context, locker *holdfast.Locker) error {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			_ = locker.Do(ctx, holdfast.Key("order", "42"), func(context.Context) error {
				time.Sleep(20 * time.Millisecond)
				return nil
			})
		})
	}
	all.Wait()
	// A handler that hangs would keep its lock for as long as the process lives. WithMaxHold ends the lock, and with it a
	// handler that heeds its context.
	err := locker.Do(ctx, holdfast.Key("report", "daily"), func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}, holdfast.WithTTL(2*time.Second), holdfast.WithMaxHold(2*time.Second))
	if !errors.Is(err, holdfast.ErrLost) {
		return fmt.Errorf("the report did not lose its lock: %v", err)
	}
	return nil
}
