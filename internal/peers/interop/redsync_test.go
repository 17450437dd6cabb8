package interop

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// On the same masters redsync's RedLock and ours exclude each other, also where a minority is down.
func TestRedLocksExcludeEachOther(t *testing.T) {
	require(t, peers.Redsync)
	const key = "order:42"
	for name, down := range map[string]int{"all masters": 0, "two of five down": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ours, theirs []*redis.Client
				for i := range 5 {
					b := servertest.NewBubble(t)
					ours, theirs = append(ours, b.Client()), append(theirs, b.Client())
					if i < down {
						b.Down()
					}
				}
				l, err := redlock.New(ours)
				if err != nil {
					t.Fatal(err)
				}
				e := &env{t: t}
				defer e.shutdown(l)
				rival, err := peers.Redsync.Open(peers.Settings{Clients: theirs, Lease: 15 * time.Second})
				if err != nil {
					t.Fatal(err)
				}

				lock, err := l.TryAcquire(background, key)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := rival.Try(background, key); err == nil {
					t.Error("redsync has a lock that is ours")
				}
				if err := lock.Err(); err != nil {
					t.Error(err)
				}
				if err := lock.Release(background); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)

				m, err := rival.Try(background, key)
				if err != nil {
					t.Fatal(err)
				}
				if _, err = l.TryAcquire(background, key); !errors.Is(err, holdfast.ErrNotAcquired) {
					t.Errorf("while redsync has the lock: got %v", err)
				}
				if err := m.Release(background); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
				if lock, err = l.TryAcquire(background, key); err != nil {
					t.Fatal(err)
				}
				if err := lock.Release(background); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
