package main

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

func TestEachLockHasASpan(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	program := exampletest.Start(t, run)
	program.Wait()
	want := regexp.MustCompile(`^span "lock" took \S+: lock\.key=order:42 lock\.token=\d+ lock\.attempts=\d+( waiting)? acquired Unset$`)
	for _, line := range program.Await(3, "span ") {
		if !want.MatchString(line) {
			t.Errorf("got %s", line)
		}
	}
}

// A loss is in the span too.
func TestSpanOfALoss(t *testing.T) {
	out := &strings.Builder{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(lines{out}))
	rdb := redis.NewClient(&redis.Options{Addr: exampletest.Redis(t).Addr()})
	defer rdb.Close()
	locker, err := holdfast.New(rdb, holdfast.WithTTL(2*time.Second), holdfast.WithMaxHold(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Shutdown(t.Context())
	err = traced(t.Context(), provider.Tracer("holdfast"), locker, "report", func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if got := out.String(); !strings.HasSuffix(got, " acquired exception Error\n") {
		t.Errorf("got %s", got)
	}
}
