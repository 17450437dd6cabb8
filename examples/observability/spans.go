package main

import (
	"context"
	"fmt"
	"io"

	"github.com/holdfast-go/holdfast/core"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tracedLocker makes a span of each lock: from the first look, so that the waiting is seen, to the release.
type tracedLocker struct {
	locker *holdfast.Locker
	tracer trace.Tracer
}

func (l *tracedLocker) do(ctx context.Context, key string, fn func(context.Context) error, opts ...holdfast.CallOption) error {
	// Unlike a label of a metric, an attribute of a span may well be the key.
	ctx, span := l.tracer.Start(ctx, "lock "+resource(key), trace.WithAttributes(attribute.String("lock.key", key)))
	defer span.End()
	hooks := &holdfast.Trace{
		Waiting: func(e holdfast.Event) {
			span.AddEvent("waiting", trace.WithAttributes(attribute.String("lock.holder", e.Label)))
		},
		Acquired: func(e holdfast.Event) {
			span.AddEvent("acquired")
			span.SetAttributes(attribute.Int64("lock.token", e.Token), attribute.Int("lock.attempts", e.Attempts))
		},
		NodeError: func(e holdfast.Event) { span.RecordError(e.Err) },
	}
	// A loss is in the error. Its hook may come after the end of the span.
	// The lock's context descends from that of the span, so that what fn does is seen below it.
	err := l.locker.Do(ctx, key, fn, append(opts, holdfast.WithTrace(hooks))...)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// lines prints each span, where a real exporter would send it.
type lines struct{ out io.Writer }

func (l lines) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, span := range spans {
		text := fmt.Sprintf("span %q took %v:", span.Name(), span.EndTime().Sub(span.StartTime()))
		for _, a := range span.Attributes() {
			text += fmt.Sprintf(" %s=%v", a.Key, a.Value.AsInterface())
		}
		for _, e := range span.Events() {
			text += " " + e.Name
		}
		if _, err := fmt.Fprintln(l.out, text, span.Status().Code); err != nil {
			return err
		}
	}
	return nil
}

func (lines) Shutdown(context.Context) error { return nil }
