package servertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// field returns the value of a line of INFO.
func field(info, name string) string {
	for line := range strings.SplitSeq(info, "\r\n") {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return value
		}
	}
	return ""
}

// serverInfo asks the server, over no link, what it says of itself.
func serverInfo(t *testing.T, b *Bubble) string {
	t.Helper()
	rdb := b.Client()
	defer rdb.Close()
	info, err := rdb.Info(context.Background(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func wantUptime(t *testing.T, b *Bubble, what string, want time.Duration) {
	t.Helper()
	if got := field(serverInfo(t, b), "uptime_in_seconds"); got != fmt.Sprint(int(want.Seconds())) {
		t.Errorf("uptime %s: got %s s, want %v", what, got, want)
	}
}

func TestScriptReadsInfoAndTime(t *testing.T) {
	script := redis.NewScript(`
		local info, now = redis.pcall('INFO', 'server'), redis.call('TIME')
		if type(info) ~= 'string' then return redis.error_reply('hidden: ' .. info.err) end
		redis.call('SET', KEYS[1], now[1])
		return {string.match(info, 'uptime_in_seconds:(%d+)\r\n'),
			string.match(info, 'run_id:(%x+)\r\n'), now[1],
			string.match(redis.call('INFO'), 'redis_version:(%d+)')}`)
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, _ *Link) {
		ctx := context.Background()
		read := func(up time.Duration, now time.Time) {
			t.Helper()
			got, err := script.Run(ctx, rdb, []string{"k"}).StringSlice()
			want := []string{fmt.Sprint(int(up.Seconds())), b.RunID(), fmt.Sprint(now.Unix()), "7"}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("got %v, %v, want %v", got, err, want)
			}
		}
		read(24*time.Hour, time.Now())
		b.Skew(-9 * time.Second)
		b.Uptime(2 * time.Second)
		time.Sleep(1500 * time.Millisecond)
		now := time.Now().Add(-9 * time.Second)
		read(3*time.Second, now)

		b.HideInfo()
		if err := script.Run(ctx, rdb, []string{"k"}).Err(); !redis.HasErrorPrefix(err, "hidden: NOPERM") {
			t.Errorf("hidden: got error %v, want NOPERM from pcall", err)
		}
	})
}

func TestPausedNodeHangsOnAllLinks(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, link *Link) {
		ctx := context.Background()
		sub := rdb.Subscribe(ctx, "c")
		defer sub.Close()
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		rdb.Ping(ctx)
		b.Pause()
		b.Pause()
		link.Heal() // of the link, not of the node
		b.Redis.Publish("c", "from the server")
		if err := rdb.Set(ctx, "k", "v", 0).Err(); !isTimeout(err) || b.Redis.Exists("k") {
			t.Errorf("an old link: got error %v and k %v, want a time-out and no act", err, b.Redis.Exists("k"))
		}
		late, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := b.NewLink().Dial(late, "tcp", "127.0.0.1:6379"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a dial over a new link: got error %v, want a deadline", err)
		}
		select {
		case m := <-sub.Channel():
			t.Errorf("%v crossed downwards", m)
		case <-time.After(time.Second):
		}

		time.AfterFunc(time.Second, b.Resume)
		start := time.Now()
		if err := b.Client().Ping(ctx).Err(); err != nil || time.Since(start) != time.Second {
			t.Errorf("a new link: got %v after %v, want an answer after 1s", err, time.Since(start))
		}
		synctest.Wait()
		if !b.Redis.Exists("k") {
			t.Error("the held request did not arrive")
		}
		select {
		case <-sub.Channel():
		case <-time.After(time.Second):
			t.Error("the held message did not arrive")
		}
		b.Resume()
	})
}

func TestNodeThatIsDownRefusesAndKeepsItsKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, rdb *redis.Client, _ *Link) {
		ctx := context.Background()
		rdb.Set(ctx, "long", "v", 0)
		rdb.Set(ctx, "short", "v", 10*time.Second)
		sha := rdb.ScriptLoad(ctx, "return 1").Val()
		first := b.RunID()
		b.Down()
		if err := rdb.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("an old connection: got error %v, want a reset", err)
		}
		if err := rdb.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("an old link: got error %v, want a refusal", err)
		}
		if _, err := b.NewLink().Dial(ctx, "tcp", "127.0.0.1:6379"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a new link: got error %v, want a refusal", err)
		}
		time.Sleep(time.Minute)
		b.Up()
		if got, err := rdb.Exists(ctx, "long", "short").Result(); got != 1 || err != nil {
			t.Errorf("got %d keys, %v, want the one without a lease", got, err)
		}
		if err := rdb.EvalSha(ctx, sha, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("scripts: got error %v, want NOSCRIPT", err)
		}
		wantUptime(t, b, "of the process that was started", 0)
		second := b.RunID()
		b.Up() // it is
		if b.RunID() != second || second == first {
			t.Errorf("run_id: got %s and %s after %s, want one new one", second, b.RunID(), first)
		}
	})
}

// A dial that began before must not get past a Down.
func TestNoConnectionSurvivesDown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *Bubble, _ *redis.Client, link *Link) {
		for range 200 {
			go func() {
				if c, err := link.Dial(context.Background(), "tcp", "127.0.0.1:6379"); err == nil {
					_, _ = c.Read(make([]byte, 1))
					_ = c.Close()
				}
			}()
		}
		b.Down()
		synctest.Wait()
		if n := link.Conns(); n != 0 {
			t.Errorf("%d connections to a server that is down", n)
		}
	})
}
