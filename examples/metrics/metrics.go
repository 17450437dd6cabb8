package main

import (
	"errors"
	"strings"

	"github.com/holdfast-go/holdfast/core"
	"github.com/prometheus/client_golang/prometheus"
)

// resource is the first part of a key. The key itself must not become a label, or each order would be a time series.
func resource(key string) string {
	first, _, _ := strings.Cut(key, ":")
	return first
}

// metrics returns hooks that count. They run on the goroutine that does the work, renewals included, so they must be quick.
func metrics(registry prometheus.Registerer) *holdfast.Trace {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_events_total", Help: "What happened to locks.",
	}, []string{"event", "resource"})
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "holdfast_wait_seconds", Help: "How long successful acquisitions took.",
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
		Waiting: count("waiting"), // compared with "acquired", shows how contended a resource is
		Acquired: func(e holdfast.Event) {
			acquired(e)
			wait.WithLabelValues(resource(e.Key)).Observe(e.Elapsed.Seconds())
		},
		Renewed: count("renewed"),
		Ended: func(e holdfast.Event) {
			switch {
			case errors.Is(e.Err, holdfast.ErrLost): // the one to alert on
				lost(e)
			case errors.Is(e.Err, holdfast.ErrUnavailable): // others might have to wait until the lease expires
				unreleased(e)
				return
			default: // if there is an error, it is that of Lead's function
				released(e)
			}
			hold.WithLabelValues(resource(e.Key)).Observe(e.Elapsed.Seconds())
		},
		LongHold:  count("long_hold"), // a handler might hang
		NodeError: count("node_error"),
	}
}
