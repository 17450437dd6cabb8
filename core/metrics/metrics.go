package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/core"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	maxResources = 100
	other        = "other"
)

// reasons are the values of the label of refusals.
var reasons = []string{"busy", "unavailable", "canceled", "closed", "self_deadlock"}

// A Collector has the series of one or several Lockers. Make it with [New]; the zero value does not work.
type Collector struct {
	resource func(string) string
	waiting  *prometheus.GaugeVec
	held     *prometheus.GaugeVec
	acquire  *prometheus.HistogramVec
	lost     *prometheus.CounterVec
	refused  *prometheus.CounterVec

	mu    sync.Mutex         // guards known
	known map[string]*series // by resource
}

var _ prometheus.Collector = (*Collector)(nil)

// series are those of one resource. A hook that had to find them by their labels would hash these each time.
type series struct {
	waiting, held prometheus.Gauge
	acquire       prometheus.Observer
	lost          prometheus.Counter
	refused       map[string]prometheus.Counter // by reason
}

// An Option configures a Collector.
type Option interface{ apply(*Collector) }

type option func(*Collector)

func (o option) apply(c *Collector) { o(c) }

// WithResource sets what makes the label resource of a key, which is as stored in Redis: with the prefix of
// [holdfast.WithPrefix], which f should cut off. f must always make the same of a key, return quickly, and should have few
// results. Default: the part before the first colon.
func WithResource(f func(key string) string) Option {
	return option(func(c *Collector) { c.resource = f })
}

// New makes a Collector, to be registered. The labels that [prometheus.WrapRegistererWith] adds tell several apart. It panics
// if an option is nil, with an error that matches [holdfast.ErrInvalid].
func New(opts ...Option) *Collector {
	resource := []string{"resource"}
	c := &Collector{
		resource: func(key string) string { first, _, _ := strings.Cut(key, ":"); return first },
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_waiting", Help: "Calls that wait for a lock now.",
		}, resource),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_held", Help: "Locks that are held now.",
		}, resource),
		acquire: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_acquire_seconds", Help: "How long successful acquisitions took, the wait included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10), // 0.5 ms to 2 min
		}, resource),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lost_total", Help: "Locks that were lost.",
		}, resource),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_refused_total", Help: "Calls that ended without the lock.",
		}, append(resource, "reason")),
		known: map[string]*series{},
	}
	for i, o := range opts {
		if o == nil {
			panic(fmt.Errorf("metrics: New: %w: option %d of %d is nil", holdfast.ErrInvalid, i+1, len(opts)))
		}
		o.apply(c)
	}
	if c.resource == nil {
		panic(fmt.Errorf("metrics: New: %w: WithResource(nil)", holdfast.ErrInvalid))
	}
	return c
}

// Trace returns the hooks that count, for [holdfast.WithTrace]. Give it to New, so that all calls count, and only once.
func (c *Collector) Trace() *holdfast.Trace {
	return &holdfast.Trace{
		Waiting: func(e holdfast.Event) { c.of(e.Key).waiting.Inc() },
		Acquired: func(e holdfast.Event) {
			s := c.of(e.Key)
			s.waited(e)
			s.held.Inc()
			s.acquire.Observe(e.Elapsed.Seconds())
		},
		Refused: func(e holdfast.Event) {
			s := c.of(e.Key)
			s.waited(e)
			s.refused[reason(e)].Inc()
		},
		Ended: func(e holdfast.Event) {
			s := c.of(e.Key)
			s.held.Dec()
			if e.Lost {
				s.lost.Inc()
			}
		},
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, v := range c.all() {
		v.Describe(to)
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, v := range c.all() {
		v.Collect(to)
	}
}

func (c *Collector) all() []prometheus.Collector {
	return []prometheus.Collector{c.waiting, c.held, c.acquire, c.lost, c.refused}
}

// of returns the series of a key. A gauge counts up and down in the same series, because known never shrinks.
func (c *Collector) of(key string) *series {
	resource := strings.ToValidUTF8(c.resource(key), "\uFFFD") // a label must be valid, a key need not be
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.known[resource]
	if s == nil && len(c.known) >= maxResources {
		resource = other
		s = c.known[resource]
	}
	if s == nil {
		s = &series{c.waiting.WithLabelValues(resource), c.held.WithLabelValues(resource), c.acquire.WithLabelValues(resource),
			c.lost.WithLabelValues(resource), map[string]prometheus.Counter{}}
		for _, r := range reasons {
			s.refused[r] = c.refused.WithLabelValues(resource, r)
		}
		c.known[resource] = s
	}
	return s
}

// waited ends the wait that came before e, if there was one.
func (s *series) waited(e holdfast.Event) {
	if e.Waited {
		s.waiting.Dec()
	}
}

// reason is one of reasons. A cancelled call says nothing of Redis, even if it ended before an answer, nor does one whose
// deadline passed before it asked.
func reason(e holdfast.Event) string {
	switch err := e.Err; {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, holdfast.ErrNotAcquired):
		return "busy"
	case errors.Is(err, context.DeadlineExceeded) && e.Attempts == 0:
		return "canceled"
	case errors.Is(err, holdfast.ErrClosed):
		return "closed"
	case errors.Is(err, holdfast.ErrSelfDeadlock):
		return "self_deadlock"
	}
	return "unavailable"
}
