package interop

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/redis/go-redis/v9"
)

// redislock compares as much of the stored value as its own token is long, and takes a lock that begins alike
// for its own. Its users can choose that token, a host name say, as ours can choose the label.
func TestLabelDoesNotLetATokenOfTheSameTextIn(t *testing.T) {
	require(t, peers.Redislock)
	eachServer(t, func(t *testing.T, e *env) {
		lock := e.acquire(e.locker(), holdfast.WithLabel("api-1"))
		l, err := peers.Redislock.Open(peers.Settings{Clients: []*redis.Client{e.rdb}, Lease: e.long, Value: "api-1"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Try(background, e.key); !errors.Is(err, peers.ErrHeld) {
			t.Errorf("got %v while we hold the key, want ErrHeld", err)
		}
		if err := lock.Err(); err != nil {
			t.Errorf("got %v, want our lock held", err)
		}
		e.release(lock)
	})
}
