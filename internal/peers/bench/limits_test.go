package main

import (
	"math"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// The server counts what scripts call like what clients send, so the lists of the hosts have to be right, too.
func TestHostsLetInAsManyAsTheLimit(t *testing.T) {
	target := newTestTarget(t)
	for _, h := range hosts {
		t.Run(h.name, func(t *testing.T) {
			if err := target.rdb.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			link := servertest.Proxy(t, target.addr)
			l, err := openLockers(t.Context(), rival{open: h.open(2)}, link.Addr(), 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := l.close(); err != nil {
					t.Error(err)
				}
			}()
			if err := target.resetStats(t.Context()); err != nil {
				t.Fatal(err)
			}
			link.ResetCommands()
			var locks []held
			for _, w := range l.waiters {
				lock, err := w.acquire(t.Context(), hot)
				if err != nil {
					t.Fatal(err)
				}
				locks = append(locks, lock)
			}
			if _, err := l.waiters[0].try(t.Context(), hot); err == nil {
				t.Error("a third of two got in")
			}
			third := make(chan error, 1)
			go func() {
				lock, err := l.waiters[0].acquire(t.Context(), hot)
				if err == nil {
					err = lock.Release(t.Context())
				}
				third <- err
			}()
			select {
			case err := <-third:
				t.Errorf("a third did not wait: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			for _, lock := range locks {
				if err := lock.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if err := <-third; err != nil {
				t.Error(err)
			}
			time.Sleep(settle)
			stats, err := target.stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			counted, _ := stats.split(h.sends)
			if got := link.Commands(); got.Total() != counted.calls {
				t.Errorf("counted %d in %v, but the client sent %v", counted.calls, stats, got)
			}
		})
	}
}

func TestTurnoutOfALimit(t *testing.T) {
	ms := int64(time.Millisecond)
	diaries := []diary{
		{Holds: []hold{{0, 1 * ms, 10 * ms}, {10 * ms, 13 * ms, 20 * ms}}},
		{Holds: []hold{{0, 2 * ms, 14 * ms}}, Waiting: 15 * ms},
		{Holds: []hold{{0, 16 * ms, 22 * ms}}, Failures: 1, Reason: "tired"},
	}
	// The second turn of the first goroutine has the place that it left itself, the turn of the third that of the second.
	got := party{limit: 2, goroutines: 3}.judge(diaries, 0, 40*ms)
	if got.acquires != 100 || got.handOvers != 25 || got.p50 != 2000 || got.worst != 25_000 || got.failures != 1 || got.reason != "tired" ||
		got.least != 1 || got.middle != 1 || got.most != 2 || got.beyond != 0 || !math.IsNaN(got.writer) {
		t.Errorf("got %+v", got)
	}
	if got := (party{limit: 1, goroutines: 3}).judge(diaries, 0, 40*ms); got.beyond != 3 {
		t.Errorf("with a limit of 1: got %d beyond, want 3", got.beyond)
	}
	reading := party{limit: readers, goroutines: 3}
	if got := reading.judge(diaries, 0, 40*ms); got.beyond != 3 || got.writer != 2 {
		t.Errorf("the first is a writer, and others beside it: got %+v", got)
	}
	diaries[0], diaries[1] = diary{Holds: []hold{{0, 30 * ms, 31 * ms}}}, diary{Holds: diaries[0].Holds}
	if got := reading.judge(diaries, 0, 40*ms); got.beyond != 0 {
		t.Errorf("readers, and a writer after them: got %+v", got)
	}
}
