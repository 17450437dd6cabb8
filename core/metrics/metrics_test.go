package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/metrics"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

var (
	background = context.Background()
	errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
)

// gather returns what m exports: a value for each series by its name and labels, of a histogram the count and the sum.
func gather(t *testing.T, m prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			of := "{" + strings.Join(labels, ",") + "}"
			if h := metric.GetHistogram(); h != nil {
				values[f.GetName()+"_count"+of] = float64(h.GetSampleCount())
				values[f.GetName()+"_sum"+of] = h.GetSampleSum()
			} else {
				values[f.GetName()+of] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	return values
}

// wants checks the series of the resource "order", each by its short name or reason. Those that want lacks are 0.
func wants(t *testing.T, m prometheus.Collector, when string, want map[string]float64) {
	t.Helper()
	synctest.Wait()
	got := map[string]float64{}
	for series, value := range gather(t, m) {
		name, labels, _ := strings.Cut(strings.TrimPrefix(series, "holdfast_"), "{")
		if reason, ok := strings.CutPrefix(labels, "reason="); ok {
			name, _, _ = strings.Cut(reason, ",")
		}
		if name = strings.TrimSuffix(name, "_total"); value != 0 && name != "acquire_seconds_sum" {
			got[name] = value
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", when, got, want)
	}
}

// scene is a process that counts, and another one beside it.
type scene struct {
	*holdfast.Locker
	t     *testing.T
	m     *metrics.Collector
	b     *servertest.Bubble
	link  *servertest.Link
	other *holdfast.Locker
	calls sync.WaitGroup
}

func newScene(t *testing.T, b *servertest.Bubble) *scene {
	s := &scene{t: t, m: metrics.New(), b: b}
	rdb := b.Client()
	s.link = b.Link(rdb)
	s.Locker = locker(t, rdb, holdfast.WithTrace(s.m.Trace()))
	s.other = locker(t, b.Client())
	return s
}

func locker(t *testing.T, rdb *redis.Client, opts ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		_ = l.Shutdown(ctx)
	})
	return l
}

// takes has l take order:1, which is free.
func (s *scene) takes(l *holdfast.Locker, opts ...holdfast.CallOption) *holdfast.Lock {
	s.t.Helper()
	lock, err := l.TryAcquire(background, "order:1", opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return lock
}

// waits has a call for order:1 wait, which holds the lock for a second when it has it.
func (s *scene) waits(ctx context.Context, opts ...holdfast.CallOption) {
	s.calls.Go(func() {
		_ = s.Do(ctx, "order:1", func(context.Context) error { time.Sleep(time.Second); return nil }, opts...)
	})
	synctest.Wait()
}

func (s *scene) free(lock *holdfast.Lock) {
	if err := lock.Release(background); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) during(want map[string]float64) { s.t.Helper(); wants(s.t, s.m, "meanwhile", want) }

// After every ending nobody waits and nothing is held, and the counters say how it ended.
func TestGaugesReturnToZero(t *testing.T) {
	type counts = map[string]float64
	boom := func(holdfast.Event) { panic("a hook") }
	for name, c := range map[string]struct {
		happens func(s *scene)
		want    counts
	}{
		"a release": {func(s *scene) {
			lock := s.takes(s.Locker)
			s.during(counts{"held": 1, "acquire_seconds_count": 1})
			s.free(lock)
			_ = lock.Release(background)
		}, counts{"acquire_seconds_count": 1}},
		"a release in the background": {func(s *scene) {
			s.free(s.takes(s.Locker, holdfast.WithReleaseInBackground()))
		}, counts{"acquire_seconds_count": 1}},
		"a release without an answer": {func(s *scene) {
			lock := s.takes(s.Locker)
			s.link.CutUp()
			_ = lock.Release(background)
			s.link.Heal()
		}, counts{"acquire_seconds_count": 1}},
		"a function that panics": {func(s *scene) {
			recovers(func() { _ = s.Do(background, "order:1", func(context.Context) error { panic("work") }) })
		}, counts{"acquire_seconds_count": 1}},
		"a nested handle": {func(s *scene) {
			_ = s.Do(background, "order:1", func(ctx context.Context) error {
				return s.Do(ctx, "order:1", func(context.Context) error { s.during(counts{"held": 1, "acquire_seconds_count": 1}); return nil })
			}, holdfast.WithReentrancy())
			_ = s.Do(background, "order:1", func(ctx context.Context) error {
				return s.Do(ctx, "order:1", func(context.Context) error { return nil }, holdfast.WithReentrancy())
			})
		}, counts{"acquire_seconds_count": 2, "self_deadlock": 1}},
		"a wait for another process": {func(s *scene) {
			lock := s.takes(s.other)
			s.waits(background)
			s.during(counts{"waiting": 1})
			s.free(lock)
			s.during(counts{"held": 1, "acquire_seconds_count": 1})
		}, counts{"acquire_seconds_count": 1}},
		"hand-overs": {func(s *scene) {
			lock := s.takes(s.other)
			for range 4 {
				s.waits(background)
			}
			s.during(counts{"waiting": 4})
			s.free(lock)
			s.during(counts{"waiting": 3, "held": 1, "acquire_seconds_count": 1})
		}, counts{"acquire_seconds_count": 4}},
		"permits": {func(s *scene) {
			for range 5 {
				s.waits(background, holdfast.WithLimit(2))
			}
			s.during(counts{"waiting": 3, "held": 2, "acquire_seconds_count": 2})
		}, counts{"acquire_seconds_count": 5}},
		"readers behind a writer": {func(s *scene) {
			lock := s.takes(s.Locker)
			for range 3 {
				s.waits(background, holdfast.WithShared())
			}
			s.during(counts{"waiting": 3, "held": 1, "acquire_seconds_count": 1})
			s.free(lock)
			s.during(counts{"held": 3, "acquire_seconds_count": 4})
		}, counts{"acquire_seconds_count": 4}},
		"shares": {func(s *scene) {
			lock := s.takes(s.other)
			for i := range 4 {
				s.waits(background, holdfast.WithShare(fmt.Sprint("tenant", i%2)))
			}
			s.during(counts{"waiting": 4})
			s.free(lock)
		}, counts{"acquire_seconds_count": 4}},
		"a busy key": {func(s *scene) {
			lock := s.takes(s.other)
			_, _ = s.TryAcquire(background, "order:1")
			_, _ = s.Acquire(background, "order:1", holdfast.WithWait(time.Second))
			s.free(lock)
		}, counts{"busy": 2}},
		"waits with a deadline": {func(s *scene) {
			lock := s.takes(s.other)
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			s.waits(ctx)
			s.waits(ctx)
			s.during(counts{"waiting": 2})
			s.calls.Wait()
			s.free(lock)
		}, counts{"busy": 2}},
		"cancelled waits": {func(s *scene) {
			lock := s.takes(s.other)
			ctx, cancel := context.WithCancel(background)
			for range 3 {
				s.waits(ctx)
			}
			s.waits(background)
			s.during(counts{"waiting": 4})
			cancel()
			s.during(counts{"waiting": 1, "canceled": 3})
			s.free(lock)
		}, counts{"canceled": 3, "acquire_seconds_count": 1}},
		"a wait that is cancelled as the lock comes": {func(s *scene) {
			for range 50 {
				lock := s.takes(s.other)
				ctx, cancel := context.WithCancel(background)
				s.waits(ctx)
				s.calls.Go(cancel)
				s.free(lock)
				s.calls.Wait()
				synctest.Wait()
				got := gather(s.t, s.m)
				if got["holdfast_waiting{resource=order}"] != 0 || got["holdfast_held{resource=order}"] != 0 {
					s.t.Fatal(got)
				}
			}
			s.m = metrics.New() // the rest depends on which came first
		}, nil},
		"a deadline that had passed": {func(s *scene) {
			ctx, cancel := context.WithDeadline(background, time.Now().Add(-time.Second))
			defer cancel()
			_, _ = s.Acquire(ctx, "order:1")
		}, counts{"canceled": 1}},
		"a cancelled call": {func(s *scene) {
			ctx, cancel := context.WithCancel(background)
			cancel()
			_, _ = s.Acquire(ctx, "order:1")
		}, counts{"canceled": 1}},
		"an outage": {func(s *scene) {
			s.link.Refuse(errRefused)
			s.link.Reset()
			_, _ = s.TryAcquire(background, "order:1")
			s.link.Refuse(nil)
		}, counts{"unavailable": 1}},
		"an outage under waiters": {func(s *scene) {
			lock := s.takes(s.other)
			s.waits(background)
			s.waits(background)
			s.link.Refuse(errRefused)
			s.link.Reset()
			s.calls.Wait()
			s.link.Refuse(nil)
			s.free(lock)
		}, counts{"unavailable": 2}},
		"a loss that a renewal finds": {func(s *scene) {
			lock := s.takes(s.Locker)
			s.waits(background)
			s.b.Redis.Del("order:1")
			time.Sleep(6 * time.Second)
			s.calls.Wait()
			_ = lock.Release(background)
		}, counts{"acquire_seconds_count": 2, "lost": 1}},
		"a loss that the release finds": {func(s *scene) {
			lock := s.takes(s.Locker)
			s.b.Redis.Del("order:1")
			_ = lock.Release(background)
		}, counts{"acquire_seconds_count": 1, "lost": 1}},
		"a loss of readers": {func(s *scene) {
			for range 3 {
				s.waits(background, holdfast.WithShared(), holdfast.WithMaxHold(15*time.Second))
			}
			lock := s.takes(s.Locker, holdfast.WithShared(), holdfast.WithMaxHold(15*time.Second))
			time.Sleep(20 * time.Second)
			_ = lock.Release(background)
		}, counts{"acquire_seconds_count": 4, "lost": 1}},
		"a lease that ran out": {func(s *scene) {
			lock := s.takes(s.Locker, holdfast.WithoutRenewal())
			time.Sleep(20 * time.Second)
			_ = lock.Release(background)
		}, counts{"acquire_seconds_count": 1, "lost": 1}},
		"work that hangs": {func(s *scene) {
			_ = s.Do(background, "order:1", func(ctx context.Context) error { <-ctx.Done(); return nil }, holdfast.WithProgress(time.Minute))
		}, counts{"acquire_seconds_count": 1, "lost": 1}},
		"DoAll": {func(s *scene) {
			lock := s.takes(s.other)
			s.calls.Go(func() {
				_ = s.DoAll(background, []string{"order:0", "order:1", "order:2"}, func(context.Context) error {
					s.during(counts{"held": 3, "acquire_seconds_count": 4})
					return nil
				})
			})
			s.during(counts{"waiting": 1, "held": 1, "acquire_seconds_count": 2}) // order:2 is given back
			s.free(lock)
		}, counts{"acquire_seconds_count": 4}},
		"DoAll that is refused": {func(s *scene) {
			lock := s.takes(s.other)
			none := func(context.Context) error { return nil }
			_ = s.DoAll(background, []string{"order:0", "order:1"}, none, holdfast.WithWait(0))
			_ = s.DoAll(background, []string{"order:0", "order:1"}, none, holdfast.WithWait(time.Second))
			s.free(lock)
		}, counts{"acquire_seconds_count": 2, "busy": 2}},
		"leaders": {func(s *scene) {
			ctx, cancel := context.WithCancel(background)
			for range 3 {
				s.calls.Go(func() {
					_ = s.Lead(ctx, "order:1", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
				})
			}
			s.during(counts{"waiting": 2, "held": 1, "acquire_seconds_count": 1})
			s.b.Redis.Del("order:1") // the leader leads again
			time.Sleep(10 * time.Second)
			s.during(counts{"waiting": 2, "held": 1, "acquire_seconds_count": 2, "lost": 1})
			cancel()
		}, counts{"acquire_seconds_count": 2, "lost": 1, "canceled": 2}},
		"a leader whose function lost another lock": {func(s *scene) {
			ctx, cancel := context.WithCancel(background)
			_ = s.Lead(ctx, "order:1", func(ctx context.Context) error {
				defer cancel()
				return holdfast.ErrLost
			})
		}, counts{"acquire_seconds_count": 1}},
		"Shutdown": {func(s *scene) {
			lock := s.takes(s.Locker)
			s.waits(background)
			s.waits(background)
			s.calls.Go(func() { _ = s.Shutdown(background) })
			s.during(counts{"held": 1, "acquire_seconds_count": 1, "closed": 2})
			_, _ = s.TryAcquire(background, "order:2")
			s.free(lock)
		}, counts{"acquire_seconds_count": 1, "closed": 3}},
		"a forced Shutdown": {func(s *scene) {
			lock := s.takes(s.Locker)
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			_ = s.Shutdown(ctx)
			s.during(counts{"acquire_seconds_count": 1, "lost": 1})
			_ = lock.Release(background)
		}, counts{"acquire_seconds_count": 1, "lost": 1}},
		"hooks of others that panic": {func(s *scene) {
			recovers(func() {
				_ = s.Do(background, "order:1", func(context.Context) error { return nil }, holdfast.WithTrace(&holdfast.Trace{Ended: boom}))
			})
			recovers(func() {
				_, _ = s.Acquire(background, "order:1", holdfast.WithTrace(&holdfast.Trace{Acquired: boom}))
			})
			lock := s.takes(s.other)
			recovers(func() {
				_, _ = s.Acquire(background, "order:1", holdfast.WithTrace(&holdfast.Trace{Waiting: boom}))
			})
			s.free(lock)
		}, counts{"acquire_seconds_count": 2, "unavailable": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, servertest.NewBubble(t))
				c.happens(s)
				s.calls.Wait()
				wants(t, s.m, "at the end", c.want)
			})
		})
	}
}

func recovers(fn func()) {
	defer func() { _ = recover() }()
	fn()
}

func TestAcquireSecondsIncludeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, servertest.NewBubble(t))
		lock := s.takes(s.other)
		s.waits(background)
		time.Sleep(3 * time.Second)
		s.free(lock)
		s.calls.Wait()
		if sum := gather(t, s.m)["holdfast_acquire_seconds_sum{resource=order}"]; sum < 3 || sum > 3.1 {
			t.Errorf("the acquisition took %v s, want 3", sum)
		}
	})
}

func TestKeysAreNoLabels(t *testing.T) {
	for name, c := range map[string]struct {
		opts []metrics.Option
		key  func(i int) string
		want map[string]int // keys of each resource
	}{
		"by default":         {nil, func(i int) string { return holdfast.Key("order", fmt.Sprint(i)) }, map[string]int{"order": 150}},
		"without a colon":    {nil, func(int) string { return "report" }, map[string]int{"report": 150}},
		"too many":           {nil, func(i int) string { return fmt.Sprint("order", i) }, map[string]int{"order0": 1, "order99": 1, "order100": 0, "other": 50}},
		"no UTF-8":           {nil, func(int) string { return "\xff:1" }, map[string]int{"\uFFFD": 150}},
		"a function":         {[]metrics.Option{metrics.WithResource(func(key string) string { return strings.TrimPrefix(key, "shop:")[:3] })}, func(i int) string { return fmt.Sprint("shop:order:", i) }, map[string]int{"ord": 150}},
		"others of its own":  {nil, func(i int) string { return fmt.Sprint("other:", i) }, map[string]int{"other": 150}},
		"two of a full list": {nil, func(i int) string { return fmt.Sprint(i % 120) }, map[string]int{"0": 2, "29": 2, "30": 1, "99": 1, "other": 20}},
	} {
		t.Run(name, func(t *testing.T) {
			m := metrics.New(c.opts...)
			trace := m.Trace()
			for i := range 150 {
				trace.Acquired(holdfast.Event{Key: c.key(i)})
			}
			got, held := gather(t, m), 0
			for series := range maps.Keys(got) {
				if strings.HasPrefix(series, "holdfast_held") {
					held++
				}
			}
			for resource, n := range c.want {
				if v := got["holdfast_held{resource="+resource+"}"]; v != float64(n) {
					t.Errorf("%v of %s are held, want %d", v, resource, n)
				}
			}
			if held > 101 {
				t.Errorf("%d resources", held)
			}
			for i := range 150 {
				trace.Ended(holdfast.Event{Key: c.key(i)})
			}
			for series, v := range gather(t, m) {
				if strings.HasPrefix(series, "holdfast_held") && v != 0 {
					t.Errorf("%s is %v at the end", series, v)
				}
			}
		})
	}
}

// A counter that appears with its first event would hide that: Prometheus sees no increase.
func TestSeriesBeginAtZero(t *testing.T) {
	m := metrics.New()
	m.Trace().Waiting(holdfast.Event{Key: "order:1"})
	got := gather(t, m)
	for _, series := range []string{
		"holdfast_waiting{resource=order}", "holdfast_held{resource=order}", "holdfast_acquire_seconds_count{resource=order}", "holdfast_lost_total{resource=order}",
		"holdfast_refused_total{reason=busy,resource=order}", "holdfast_refused_total{reason=unavailable,resource=order}", "holdfast_refused_total{reason=canceled,resource=order}",
		"holdfast_refused_total{reason=closed,resource=order}", "holdfast_refused_total{reason=self_deadlock,resource=order}",
	} {
		if _, ok := got[series]; !ok {
			t.Errorf("no %s in %v", series, got)
		}
	}
}

func TestWrongOptions(t *testing.T) {
	for want, o := range map[string]metrics.Option{"option 1 of 1 is nil": nil, "WithResource(nil)": metrics.WithResource(nil)} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want an ErrInvalid with %q", err, want)
				}
			}()
			metrics.New(o)
		}()
	}
}
