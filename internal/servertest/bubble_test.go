package servertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// inBubble runs fn in a bubble with one server and a client of it that does
// not try again.
func inBubble(t *testing.T, fn func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := NewBubble(t)
		rdb := b.Client(func(o *redis.Options) { o.MaxRetries = -1; o.DialerRetries = 1 })
		fn(t, b, rdb, b.Link(rdb))
	})
}

func TestKeysExpireInVirtualTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, _ *Link) {
		ctx := context.Background()
		rdb.Set(ctx, "k", "v", time.Hour)
		time.Sleep(59 * time.Minute)
		if got := rdb.PTTL(ctx, "k").Val(); got != time.Minute {
			t.Errorf("time to live after 59 min: got %v, want 1m", got)
		}
		time.Sleep(time.Minute + time.Millisecond)
		if err := rdb.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("after its lease: got error %v, want redis.Nil", err)
		}
		got, err := rdb.Eval(ctx, "return redis.call('TIME')[1]", nil).Result()
		if want := fmt.Sprint(time.Now().Unix()); got != want {
			t.Errorf("TIME in a script: got %v, %v, want %v", got, err, want)
		}
	})
}

func TestCountersLeaveOutHandshakes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		other := b.Client()
		var judged []string
		link.OnCommand(func(args []string) Verdict {
			judged = append(judged, args[0])
			return Pass
		})
		rdb.Set(ctx, "k", "v", 0)
		rdb.Eval(ctx, "return redis.call('GET', KEYS[1])", []string{"k"})
		other.Get(ctx, "k")
		if want := []string{"set", "eval"}; !slices.Equal(judged, want) {
			t.Errorf("judged: got %v, want %v", judged, want)
		}
		if want := (Counts{"set": 1, "eval": 1}); !maps.Equal(link.Commands(), want) {
			t.Errorf("one link: got %v, want %v", link.Commands(), want)
		}
		if want := (Counts{"set": 1, "eval": 1, "get": 1}); !maps.Equal(b.Commands(), want) || b.Commands().Total() != 3 {
			t.Errorf("all links: got %v, want %v", b.Commands(), want)
		}
		b.ResetCommands()
		if got := b.Commands().Total(); got != 0 {
			t.Errorf("after a reset: got %d commands", got)
		}
	})
}

func TestLinkCutUpHoldsRequestsUntilHeal(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		rdb.Ping(ctx)
		link.CutUp()
		if err := rdb.Set(ctx, "k", "v", 0).Err(); !isTimeout(err) {
			t.Errorf("got error %v, want a time-out", err)
		}
		if b.Redis.Exists("k") {
			t.Error("the request crossed the cut")
		}
		link.Heal()
		synctest.Wait()
		if !b.Redis.Exists("k") {
			t.Error("the held request did not arrive")
		}
	})
}

func TestLinkCutDownLetsTheServerAct(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		rdb.Ping(ctx)
		link.CutDown()
		time.AfterFunc(time.Second, link.Heal)
		start := time.Now()
		if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
			t.Errorf("got error %v, want the reply after the heal", err)
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("the reply took %v, want 1s", got)
		}
		link.CutDown()
		if err := rdb.Set(ctx, "l", "v", 0).Err(); !isTimeout(err) || !b.Redis.Exists("l") {
			t.Errorf("got error %v and l %v, want a time-out and an act", err, b.Redis.Exists("l"))
		}
	})
}

func TestDelayCountsForDialAndRoundTrip(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		link.Delay(10 * time.Millisecond)
		start := time.Now()
		c, err := link.Dial(ctx, "tcp", "127.0.0.1:6379")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := time.Since(start); got != 20*time.Millisecond {
			t.Errorf("a dial took %v, want 20ms", got)
		}
		rdb.Ping(ctx)
		start = time.Now()
		rdb.Ping(ctx)
		if got := time.Since(start); got != 20*time.Millisecond {
			t.Errorf("a round trip took %v, want 20ms", got)
		}
	})
}

func TestRestartForgetsEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		rdb.Set(ctx, "k", "v", 0)
		sha := rdb.ScriptLoad(ctx, "return 1").Val()
		b.Restart()
		if err := rdb.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("an old connection: got error %v, want a reset", err)
		}
		if err := rdb.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("data: got error %v, want redis.Nil", err)
		}
		if err := rdb.EvalSha(ctx, sha, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("scripts: got error %v, want NOSCRIPT", err)
		}
	})
}

func TestSkewedServerClockRunsOn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		b.Skew(-7 * time.Second)
		rdb.Set(ctx, "k", "v", time.Minute)
		time.Sleep(50 * time.Second)
		if got, want := rdb.Time(ctx).Val(), time.Now().Add(-7*time.Second); !got.Equal(want) {
			t.Errorf("TIME: got %v, want %v", got, want)
		}
		if got := rdb.PTTL(ctx, "k").Val(); got != 10*time.Second {
			t.Errorf("time to live: got %v, want 10s", got)
		}
		b.Skew(4 * time.Second) // a step of 11 s
		if err := rdb.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("after the step: got error %v, want redis.Nil", err)
		}
	})
}

// Each of these would leave a goroutine behind, and the bubble would fail.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	callers := func(n int, fn func()) {
		for range n {
			go fn()
		}
		time.Sleep(time.Second)
	}
	t.Run("requests on a cut link", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
			ctx := context.Background()
			sub := rdb.Subscribe(ctx, "c")
			defer sub.Close()
			rdb.Ping(ctx)
			link.CutUp()
			link.CutDown()
			callers(20, func() { rdb.Set(ctx, "k", "v", 0) })
			b.Close()
			b.Close()
		})
	})
	t.Run("a dial without a time limit on a cut link", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
			link.CutDown()
			callers(1, func() { _, _ = link.Dial(context.Background(), "tcp", "127.0.0.1:6379") })
		})
	})
	t.Run("a slow dial", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
			link.Delay(time.Hour)
			callers(1, func() { _, _ = link.Dial(context.Background(), "tcp", "127.0.0.1:6379") })
		})
	})
	t.Run("requests held for ever", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
			link.OnCommand(func([]string) Verdict { return HoldRequest(nil) })
			callers(20, func() { rdb.Set(context.Background(), "k", "v", 0) })
		})
	})
	t.Run("dials that are tried again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := NewBubble(t)
			rdb := b.Client(func(o *redis.Options) { o.DialerRetryTimeout = 2 * time.Second })
			b.Link(rdb).Refuse(syscall.ECONNREFUSED)
			callers(20, func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				rdb.Ping(ctx)
			})
		})
	})
	t.Run("a connection nobody closes", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
			if _, err := b.NewLink().Dial(context.Background(), "tcp", "127.0.0.1:6379"); err != nil {
				t.Fatal(err)
			}
		})
	})
}
