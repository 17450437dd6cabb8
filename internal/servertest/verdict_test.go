package servertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// judging has the link give v to the first command called name.
func judging(link *Link, name string, v Verdict) {
	var once sync.Once
	link.OnCommand(func(args []string) Verdict {
		verdict := Pass
		if args[0] == name {
			once.Do(func() { verdict = v })
		}
		return verdict
	})
}

func TestLostReplyLeavesTheServerActed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		judging(link, "incr", LoseReply)
		start := time.Now()
		if err := rdb.Incr(ctx, "n").Err(); !isTimeout(err) {
			t.Errorf("got error %v, want a time-out", err)
		}
		if got, want := time.Since(start), rdb.Options().ReadTimeout; got != want {
			t.Errorf("gave up after %v, want the read time-out of %v", got, want)
		}
		if got := rdb.Get(ctx, "n").Val(); got != "1" {
			t.Errorf("n is %q, want 1", got)
		}
	})
}

func TestLostReplyMakesAClientWithDefaultsResend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBubble(t)
		rdb := b.Client()
		judging(b.Link(rdb), "incr", LoseReplyAndClose)
		if got := rdb.Incr(context.Background(), "n").Val(); got != 2 {
			t.Errorf("n is %d, want 2: once unseen, once resent", got)
		}
		if got := b.Commands()["incr"]; got != 2 {
			t.Errorf("%d INCR reached the server, want 2", got)
		}
	})
}

func TestLostRequestNeverReachesTheServer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		judging(link, "incr", LoseRequest)
		if err := rdb.Incr(ctx, "n").Err(); !isTimeout(err) {
			t.Errorf("got error %v, want a time-out", err)
		}
		judging(link, "incr", LoseRequestAndClose)
		if err := rdb.Incr(ctx, "n").Err(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got error %v, want a reset", err)
		}
		if b.Redis.Exists("n") || b.Commands()["incr"] != 0 {
			t.Errorf("a lost request was executed: %v", b.Commands())
		}
	})
}

func TestHeldRequestArrivesAfterItsClientGaveUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		release := make(chan struct{})
		judging(link, "set", HoldRequest(release))
		if err := rdb.Set(ctx, "k", "late", 0).Err(); !isTimeout(err) {
			t.Errorf("got error %v, want a time-out", err)
		}
		rdb.Set(ctx, "k", "early", 0) // over another connection
		if got := rdb.Get(ctx, "k").Val(); got != "early" {
			t.Errorf("k is %q, want early", got)
		}
		time.Sleep(time.Hour)
		close(release)
		synctest.Wait()
		if got := rdb.Get(ctx, "k").Val(); got != "late" {
			t.Errorf("k is %q, want late", got)
		}
	})
}

func TestVerdictHitsOneCommandOfAPipeline(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		judging(link, "decr", LoseReply)
		pipe := rdb.Pipeline()
		first, second, third := pipe.Incr(context.Background(), "a"), pipe.Decr(context.Background(), "b"), pipe.Incr(context.Background(), "c")
		_, _ = pipe.Exec(context.Background())
		if first.Val() != 1 { // go-redis v9.23 has the time-out beside it
			t.Errorf("before the lost reply: got %d, %v, want 1", first.Val(), first.Err())
		}
		if second.Err() == nil || third.Err() == nil {
			t.Errorf("from the lost reply on: got errors %v and %v, want both", second.Err(), third.Err())
		}
		if got, _ := b.Redis.Get("c"); got != "1" {
			t.Errorf("c is %q, want 1: all three reached the server", got)
		}
		if want := (Counts{"incr": 2, "decr": 1}); !maps.Equal(b.Commands(), want) {
			t.Errorf("commands: got %v, want %v", b.Commands(), want)
		}
	})
}

func TestPublishedMessagesCanBeLostOrHeld(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testMessages(t, protocol) })
		})
	}
}

func testMessages(t *testing.T, protocol int) {
	ctx := context.Background()
	b := NewBubble(t)
	rdb := b.Client(func(o *redis.Options) { o.Protocol = protocol })
	release := make(chan struct{})
	b.Link(rdb).OnMessage(func(_, payload string) Verdict {
		switch payload {
		case "lost":
			return LoseReply
		case "held":
			return HoldReply(release)
		}
		return Pass
	})
	sub := rdb.Subscribe(ctx, "c")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	publisher := b.Client()
	for _, payload := range []string{"one", "lost", "held", "two"} {
		if n := publisher.Publish(ctx, "c", payload).Val(); n != 1 {
			t.Errorf("published %q to %d, want 1", payload, n)
		}
	}
	start := time.Now()
	time.AfterFunc(time.Minute, func() { close(release) })
	for _, want := range []string{"one", "held", "two"} {
		m, err := sub.ReceiveMessage(ctx)
		if err != nil || m.Payload != want {
			t.Fatalf("got %v, %v, want %q", m, err, want)
		}
	}
	if got := time.Since(start); got != time.Minute {
		t.Errorf("the held message took %v, want 1m", got)
	}
}
