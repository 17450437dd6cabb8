package core_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A command that comes in the very moment in which a lane stops waiting for one is not lost with it.
func TestCommandMeetsTheEndOfARest(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		for i := range 300 {
			began := time.Now()
			lock, err := r.Acquire(background, "k")
			if err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 10*time.Millisecond {
				t.Fatalf("acquire %d took %v", i, d)
			}
			release(t, lock)
			if d := time.Since(began); d > 10*time.Millisecond {
				t.Fatalf("release %d took %v", i, d)
			}
			time.Sleep(core.LaneRest)
		}
	})
}

// Whoever asks for the context of a lock while it ends gets one that ends too.
func TestContextOfALockThatEndsMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		for range 300 {
			lock, err := r.Acquire(background, "k")
			if err != nil {
				t.Fatal(err)
			}
			released := make(chan error)
			go func() { released <- lock.Release(background) }()
			ctx := lock.Context()
			<-ctx.Done() // or the bubble finds that nothing can happen any more
			if err := <-released; err != nil {
				t.Fatal(err)
			}
			if lock.Context() != ctx {
				t.Fatal("another context")
			}
		}
	})
}
