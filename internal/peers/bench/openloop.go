package main

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// loopTick is how often an open loop lets in what has come meanwhile.
	loopTick = time.Millisecond
	// loopLate is how far a loop may be behind before it gives up what should have come.
	loopLate = 100 * time.Millisecond
	// loopMost bounds how many are inside at a time.
	loopMost = 250_000
	// loopSlot is the resolution in time of what a loop records.
	loopSlot = 50 * time.Millisecond
)

// openLoop has calls come at a rate, whatever becomes of those before, as requests come to a service. Each has a goroutine
// and a context with a deadline. A closed loop, in which a number of callers wait for the lock and come back, slows down
// with the lock, and so cannot overload it.
type openLoop struct {
	call     func(ctx context.Context, n int64) error // has the lock for a moment, and returns after the release
	patience time.Duration

	inside atomic.Int64
	came   int64

	mu    sync.Mutex // guards slots
	began int64      // by now, as all times
	slots []slot
}

// slot is what ended in loopSlot, and what there was at most.
type slot struct {
	came, missed, served, failed    int
	reason                          string
	goroutines, beyond, inside, rss int
	took                            histogram
}

func newOpenLoop(patience time.Duration, call func(ctx context.Context, n int64) error) *openLoop {
	l := &openLoop{call: call, patience: patience, began: now()}
	l.slots = make([]slot, 0, 1200)
	return l
}

// offer lets calls in at a rate per second until ctx ends. It does not wait for them.
func (l *openLoop) offer(ctx context.Context, rate float64) {
	tick := time.NewTicker(loopTick)
	defer tick.Stop()
	for began, done := time.Now(), 0; ctx.Err() == nil; {
		due := int(rate * time.Since(began).Seconds())
		missed := max(0, due-done-int(math.Ceil(rate*loopLate.Seconds())), due-done-int(loopMost-l.inside.Load()))
		let := max(0, due-done-missed)
		done = due
		at := time.Now()
		l.inside.Add(int64(let))
		for range let {
			l.came++
			go l.enter(at, l.came)
		}
		l.note(func(s *slot) { s.came, s.missed = s.came+let, s.missed+missed })
		<-tick.C
	}
}

// enter is one call. How long it takes counts from when it should have come.
func (l *openLoop) enter(at time.Time, n int64) {
	ctx, cancel := context.WithDeadline(context.Background(), at.Add(l.patience))
	err := l.call(ctx, n)
	cancel()
	took := time.Since(at)
	l.note(func(s *slot) {
		if err != nil {
			s.failed++
			if s.reason == "" {
				s.reason = err.Error()
			}
			return
		}
		s.served++
		s.took.add(took)
	})
	l.inside.Add(-1)
}

// note changes the slot of now.
func (l *openLoop) note(change func(*slot)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := int((now() - l.began) / int64(loopSlot)); i >= len(l.slots); {
		l.slots = append(l.slots, slot{})
	}
	change(&l.slots[len(l.slots)-1])
}

// watch records what there is until ctx ends.
func (l *openLoop) watch(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		rss := 0
		if i%4 == 0 {
			rss = memory("VmRSS:")
		}
		// Many come and go between two readings if the processors are busy.
		goroutines, inside, beyond := 0, 0, math.MaxInt
		for range 3 {
			before := int(l.inside.Load())
			goroutines = runtime.NumGoroutine()
			inside = max(before, int(l.inside.Load()))
			beyond = min(beyond, max(0, goroutines-inside))
		}
		l.note(func(s *slot) {
			s.goroutines, s.beyond = max(s.goroutines, goroutines), max(s.beyond, beyond)
			s.inside, s.rss = max(s.inside, inside), max(s.rss, rss)
		})
		<-tick.C
	}
}

// window is a time of a loop, by now, and what happened in it.
type window struct {
	From, To                        int64
	Came, Missed, Served, Failed    int
	Reason                          string
	P50, P99                        float64 // ms of those served, or not a number
	Goroutines, Beyond, Inside, RSS int     // at most; Beyond is goroutines without those of the callers inside; RSS in bytes
}

func (w window) seconds() float64 { return float64(w.To-w.From) / 1e9 }

// fill adds up what happened in w.
func (l *openLoop) fill(w *window) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var took histogram
	from, to := int((w.From-l.began)/int64(loopSlot)), int((w.To-l.began)/int64(loopSlot))
	for i := max(0, from); i < min(to, len(l.slots)); i++ {
		s := &l.slots[i]
		w.Came, w.Missed, w.Served, w.Failed = w.Came+s.came, w.Missed+s.missed, w.Served+s.served, w.Failed+s.failed
		w.Reason = cmp.Or(w.Reason, s.reason)
		w.Goroutines, w.Beyond = max(w.Goroutines, s.goroutines), max(w.Beyond, s.beyond)
		w.Inside, w.RSS = max(w.Inside, s.inside), max(w.RSS, s.rss)
		for b, n := range s.took {
			took[b] += n
		}
	}
	w.P50, w.P99 = took.quantile(0.5), took.quantile(0.99)
}

// histogram counts durations from 1 µs to 33 s with an error of 6 %, in memory that does not grow.
type histogram [22 << histogramBits]uint32

const histogramBits = 4 // buckets for each power of two

func (h *histogram) add(d time.Duration) {
	us := uint64(max(d.Microseconds(), 1<<histogramBits))
	shift := bits.Len64(us) - histogramBits - 1
	i := shift<<histogramBits + int(us>>shift) - 1<<histogramBits
	h[min(i, len(h)-1)]++
}

// quantile is in ms, and not a number without any.
func (h *histogram) quantile(q float64) float64 {
	sum := uint64(0)
	for _, n := range h {
		sum += uint64(n)
	}
	want := max(1, uint64(math.Ceil(q*float64(sum))))
	for i, n := range h {
		if uint64(n) >= want {
			shift := i >> histogramBits
			return float64(uint64(i-shift<<histogramBits+1<<histogramBits+1)<<shift) / 1e3
		}
		want -= uint64(n)
	}
	return math.NaN()
}

// memory is what the system says of this process' memory, in bytes, or 0.
func memory(field string) int {
	text, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(text), field)
	kB, _, _ := strings.Cut(rest, " kB")
	n, _ := strconv.Atoi(strings.TrimSpace(kB))
	return n << 10
}
