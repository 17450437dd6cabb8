package holdfast_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestExtendLengthensAndNeverShortens(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(10*time.Second))
		before := lock.Deadline()
		if err := lock.Extend(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		if got := b.Redis.TTL("k"); got != time.Minute {
			t.Errorf("TTL after Extend: got %v, want 1m", got)
		}
		if got, want := time.Until(lock.Deadline()), time.Minute-holdfast.Margin(time.Minute); got != want {
			t.Errorf("Deadline after Extend: in %v, want %v", got, want)
		}
		if err := lock.Extend(background, time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // two ordinary renewals would have come by now
		if got := b.Redis.TTL("k"); got != 40*time.Second {
			t.Errorf("TTL: got %v, want 40s left of the extension", got)
		}
		if !lock.Deadline().After(before) {
			t.Error("the deadline went back")
		}
		time.Sleep(10 * time.Minute) // renewal takes over in time
		if err := lock.Err(); err != nil {
			t.Errorf("after the extension: %v", err)
		}
		wantIs(t, lock.Extend(background, time.Millisecond), holdfast.ErrInvalid)
		wantIs(t, lock.Extend(background, 25*time.Hour), holdfast.ErrInvalid)
		ended, cancel := context.WithCancel(background)
		cancel()
		wantIs(t, lock.Extend(ended, time.Minute), holdfast.ErrUnavailable, context.Canceled)
		release(t, lock)
	})
}

func TestExtendAfterReleaseSaysThatTheLockIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		release(t, lock)
		err := lock.Extend(background, time.Minute)
		wantIs(t, err, holdfast.ErrLost)
		if !contains(err, "extend", `"k"`, "released") {
			t.Errorf("got %v", err)
		}
	})
}

func TestExtendTriesAgainSoonAfterALongSilence(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithTTL(10*time.Minute), holdfast.WithoutRenewal())
		n := 0
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if kind(args) != "renew" {
				return servertest.Pass
			}
			switch n++; {
			case n <= 15:
				return servertest.LoseReply
			case n == 16:
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		begin := time.Now()
		done := make(chan error)
		go func() { done <- lock.Extend(background, 10*time.Minute) }()
		err := <-done
		if d := time.Since(begin); d > 35*time.Second || err != nil {
			t.Errorf("took %v: %v", d, err)
		}
		_ = lock.Release(background)
	})
}

// Without renewal nobody prolongs a lease but Extend, by what it was asked for.
func TestExtendWithoutRenewalIsLeftAtThat(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal())
		time.Sleep(13 * time.Second)
		r.link.ResetCommands()
		if err := lock.Extend(background, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if ttl, n := b.Redis.TTL("k"), r.link.Commands().Total(); ttl != 4*time.Second || n != 1 {
			t.Errorf("%d commands, and redis has it for another %v, want 4s", n, ttl)
		}
		release(t, lock)
	})
}
