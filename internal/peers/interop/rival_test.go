package interop

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/redis/go-redis/v9"
)

// rival is another program that takes locks on the same Redis.
type rival struct{ *peers.Library }

// rivals are those whose keys have the names that ours have.
func rivals() []rival {
	all := []rival{{peers.Plain}}
	for _, lib := range []*peers.Library{peers.Redislock, peers.Redsync} {
		if lib.Present() {
			all = append(all, rival{lib})
		}
	}
	return all
}

// obtain tries once; ErrHeld says that somebody else has the key, any other error is a failure.
func (r rival) obtain(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (peers.Lock, error) {
	// Redsync's bound for one call is 5 % of the lease by default: too short for a loaded machine.
	l, err := r.Open(peers.Settings{Clients: []*redis.Client{rdb}, Lease: ttl, TimeoutFactor: 1})
	if err != nil {
		return nil, err
	}
	return l.Try(ctx, key)
}

func require(t *testing.T, lib *peers.Library) {
	t.Helper()
	if !lib.Present() {
		t.Skip("left out: " + lib.Module)
	}
}
