// Observability tells of locks in metrics (Prometheus), logs (slog) and traces (OpenTelemetry).
//
//	go run ./examples/observability
//	curl localhost:8080/metrics
//
// Some workers want one order, and a report hangs and loses its lock. Then it serves the metrics until Ctrl-C, at
// LISTEN_ADDR if it is set. Redis is embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
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

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()

	// Losses, long holds, errors of Redis and failed releases are warnings, which are all to be seen in production. The rest is
	// at the level debug.
	logger := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	registry := prometheus.NewRegistry()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(lines{out})) // in earnest, WithBatcher and an exporter for OTLP
	defer func() { err = errors.Join(err, provider.Shutdown(context.WithoutCancel(ctx))) }()

	// Traces add up: those of the Locker hear of all locks, those of a call of its own.
	locker, err := holdfast.New(rdb,
		holdfast.WithTrace(holdfast.LogTrace(logger)), holdfast.WithTrace(metrics(registry)))
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()
	traced := &tracedLocker{locker, provider.Tracer("holdfast")}
	if err := work(ctx, traced); err != nil {
		return err
	}

	addr := os.Getenv("LISTEN_ADDR")
	if addr == "" {
		addr = "localhost:8080"
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintf(out, "listening on http://%s/metrics\n", listener.Addr())
	go func() { _ = server.Serve(listener) }()
	<-ctx.Done()
	return server.Shutdown(context.WithoutCancel(ctx))
}

func work(ctx context.Context, locker *tracedLocker) error {
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = locker.do(ctx, holdfast.Key("order", "42"), func(context.Context) error {
				time.Sleep(20 * time.Millisecond)
				return nil
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// A handler that hangs would keep its lock for as long as the process lives. WithMaxHold ends the lock, though not the
	// handler, unless it looks at its context.
	err := locker.do(ctx, holdfast.Key("report", "daily"), func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}, holdfast.WithTTL(2*time.Second), holdfast.WithMaxHold(2*time.Second))
	if !errors.Is(err, holdfast.ErrLost) {
		return fmt.Errorf("the report did not lose its lock: %v", err)
	}
	return nil
}
