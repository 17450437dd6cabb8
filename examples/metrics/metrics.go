package main

import (
	"errors"
	"strings"

	"github.com/holdfast-go/holdfast/core"
	"github.com/prometheus/client_golang/prometheus"
)

// resource is the first part of a key. The key itself must not become a label: each order would be a time series.
func resource(key string) string {
	first, _, _ := strings.Cut(key, ":")
	return first
}

// metrics returns hooks that count. They run on the goroutine at work, renewals included, and have to be quick.
func metrics(registry prometheus.Registerer) *holdfast.Trace {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_events_total", Help: "What became of locks.",
	}, []string{"event", "resource"})
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "holdfast_wait_seconds", Help: "How long acquisitions took that succeeded.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10), // 0.5 ms to 2 min
	}, []string{"resource"})
	hold := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "holdfast_hold_seconds", Help: "How long locks were held.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
	}, []string{"resource"})
	registry.MustRegister(events, wait, hold)

	count := func(event string) func(holdfast.Event) {
		return func(e holdfast.Event) { events.WithLabelValues(event, resource(e.Key)).Inc() }
	}
	acquired, lost, released, unreleased := count("acquired"), count("lost"), count("released"), count("unreleased")
	return &holdfast.Trace{
		Waiting: count("waiting"), // with "acquired", how contended a resource is
		Acquired: func(e holdfast.Event) {
			acquired(e)
			wait.WithLabelValues(resource(e.Key)).Observe(e.Elapsed.Seconds())
		},
		Renewed: count("renewed"),
		Lost: func(e holdfast.Event) { // the one to be woken for
			lost(e)
			hold.WithLabelValues(resource(e.Key)).Observe(e.Elapsed.Seconds())
		},
		Released: func(e holdfast.Event) {
			switch {
			case e.Err == nil:
				released(e)
				hold.WithLabelValues(resource(e.Key)).Observe(e.Elapsed.Seconds())
			case !errors.Is(e.Err, holdfast.ErrLost): // which has been counted
				unreleased(e) // Redis did not confirm; others may have to wait for the end of the lease
			}
		},
		LongHold:  count("long_hold"), // a handler may hang
		NodeError: count("node_error"),
	}
}
