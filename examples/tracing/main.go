// Tracing makes an OpenTelemetry span for each lock. The span begins with the wait and ends with the release.
//
//	go run ./examples/tracing
//
// It prints the spans of three callers that want one order. Redis is embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
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
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(ctx)) }()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(lines{out})) // in a real service: WithBatcher and OTLP
	defer func() { err = errors.Join(err, provider.Shutdown(ctx)) }()
	tracer := provider.Tracer("holdfast")

	errs := make(chan error, 3)
	for range 3 {
		go func() {
			errs <- traced(ctx, tracer, locker, holdfast.Key("order", "42"), func(context.Context) error {
				time.Sleep(20 * time.Millisecond)
				return nil
			})
		}()
	}
	return errors.Join(<-errs, <-errs, <-errs)
}

// traced is Locker.Do within a span. The context of fn descends from the span's, so the spans of fn appear below it.
func traced(ctx context.Context, tracer trace.Tracer, locker *holdfast.Locker, key string, fn func(context.Context) error) error {
	ctx, span := tracer.Start(ctx, "lock", trace.WithAttributes(attribute.String("lock.key", key)))
	defer span.End()
	err := locker.Do(ctx, key, fn, holdfast.WithTrace(&holdfast.Trace{ // hooks for this lock only
		Waiting: func(e holdfast.Event) {
			span.AddEvent("waiting", trace.WithAttributes(attribute.String("lock.holder", e.Label)))
		},
		Acquired: func(e holdfast.Event) {
			span.AddEvent("acquired")
			span.SetAttributes(attribute.Int64("lock.token", e.Token), attribute.Int("lock.attempts", e.Attempts))
		},
		NodeError: func(e holdfast.Event) { span.RecordError(e.Err) },
	}))
	if err != nil { // a loss too: its hook might run after the end of the span
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// lines prints each span. A real exporter would send it.
type lines struct{ out io.Writer }

func (l lines) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, span := range spans {
		fmt.Fprintf(l.out, "span %q took %v:", span.Name(), span.EndTime().Sub(span.StartTime()))
		for _, a := range span.Attributes() {
			fmt.Fprintf(l.out, " %s=%v", a.Key, a.Value.AsInterface())
		}
		for _, e := range span.Events() {
			fmt.Fprintf(l.out, " %s", e.Name)
		}
		fmt.Fprintln(l.out, "", span.Status().Code)
	}
	return nil
}

func (lines) Shutdown(context.Context) error { return nil }
