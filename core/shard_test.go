package core_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A pipeline of a Cluster client is through when all its shards are: one that hangs must not keep the renewals
// of the others.
func TestSilentShardDoesNotLoseTheLocksOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		b2 := servertest.NewBubble(t)
		links := map[string]*servertest.Link{"10.0.0.1:1": b.NewLink(), "10.0.0.2:1": b2.NewLink()}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:1"},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: "10.0.0.1:1"}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "10.0.0.2:1"}}},
				}, nil
			},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return links[addr].Dial(ctx, network, addr)
			},
			PoolSize:                 400,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer func() { _ = rdb.Close(); time.Sleep(5 * time.Minute) }()
		for _, ttl := range []time.Duration{3 * time.Second, 15 * time.Second} {
			l := newLocker(t, rdb, core.WithTTL(ttl))
			// CRC16: "foo" is slot 12182, "bar" 5061
			good, bad := acquire(t, l, "bar"), acquire(t, l, "foo")
			if !b.Redis.Exists("bar") || !b2.Redis.Exists("foo") {
				t.Fatal("slots")
			}
			time.Sleep(2 * ttl)
			links["10.0.0.2:1"].CutUp()
			time.Sleep(2 * ttl)
			if err := good.Err(); err != nil {
				t.Errorf("ttl %v: on the healthy shard: %v", ttl, err)
			}
			wantIs(t, bad.Err(), core.ErrLost)
			links["10.0.0.2:1"].Heal()
			links["10.0.0.2:1"].Reset()
			_ = good.Release(background)
			_ = bad.Release(background)
			time.Sleep(time.Minute)
		}
	})
}
