package holdfast_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What a client can do that may PUBLISH to inboxes, and no more: it knows the messages that were published, and repeats or
// makes up others.

// A grant that is repeated to the inbox of another Locker does not free the lock. To its own it is sent while the lock is
// held, and undone once when the lock was released.
func TestReplayedGrant(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r, victim := newReplica(t, b), newReplica(t, b), newReplica(t, b)
		to := inboxes(t, b, victim, r)
		grant := nextMessage(r.link)
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		release(t, lock)
		lock = got(t, c)
		w := watchKey(t, b, "k")
		w.add(lock)
		keys := b.Redis.Keys()
		repeat := func(n int, inboxes ...string) servertest.Counts {
			b.ResetCommands()
			for range n {
				for _, inbox := range inboxes {
					b.Redis.Publish(inbox, grant())
				}
			}
			synctest.Wait()
			return b.Commands()
		}
		if n := repeat(100, to...); n.Total() != 0 {
			t.Errorf("%v for a grant of a lock that is held", n)
		}
		if now := b.Redis.Keys(); !slices.Equal(now, keys) {
			t.Errorf("keys %v, %v before", now, keys)
		}
		time.Sleep(2 * time.Second)
		release(t, lock)
		w.end()
		if n := repeat(1000, to...); n["evalsha"] != 1 || n.Total() > 2 { // the server may not know the script
			t.Errorf("%v for a grant of a lock that was released, want one command", n)
		}
		time.Sleep(4 * time.Second)
		if n := repeat(1000, to[0]); n.Total() != 0 {
			t.Errorf("%v for the grant of another Locker", n)
		}
		release(t, acquire(t, victim.Locker, "k"))
		empty(t, b, holder, r, victim)
	})
}

// Messages about other keys than those that a Locker's owners want, and about values that are none of its owners.
func TestMessageWithAForeignKey(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		to := inboxes(t, b, r)[0]
		c := call(background, r, "k")
		ids, _ := b.Redis.HKeys("{k}:~wait")
		_ = b.Redis.Set("other", "1")
		_ = b.Redis.Set("mine", ids[0])
		before := b.Redis.Dump()
		b.ResetCommands()
		at := time.Now().UnixMicro()
		for _, g := range []struct{ owner, key string }{
			{"1", "other"}, {"", "other"}, {ids[0], "mine"}, {ids[0], "other"}, {ids[0], "elsewhere"}, {ids[0] + ":x", "k"}, {"~" + ids[0], "k"},
			{holdfast.Owner(lock), "k"}, {holdfast.Owner(lock), "other"}, {"~0946684800000000" + ids[0], "k"},
		} {
			b.Redis.Publish(to, fmt.Sprintf("%s\n%d\n%d\n%s", g.owner, at, at, g.key))
			synctest.Wait()
			notYet(t, c)
		}
		if n := b.Commands(); n.Total() != 0 {
			t.Errorf("%v for messages that are for nobody", n)
		}
		if after := b.Redis.Dump(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		b.Redis.Del("other")
		b.Redis.Del("mine")
		release(t, lock)
		release(t, got(t, c))
	})
}

// 100,000 messages about owners that nobody has cost no command, no goroutine and no memory that stays. A waiter is
// notified at once, and the Locker says once a minute how many there were.
func TestManyUnknownMessages(t *testing.T) {
	many := 100_000
	if underRace {
		many = 10_000
	}
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var told reported
		holder, r, stranger := newReplica(t, b), newReplica(t, b, holdfast.WithTrace(told.trace())), newReplica(t, b)
		to := inboxes(t, b, r)[0]
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		ids, _ := b.Redis.HKeys("{k}:~wait")
		theirs := acquire(t, stranger.Locker, "theirs")
		at := time.Now().UnixMicro()
		var texts []string
		for _, g := range []struct{ owner, key string }{
			{"AAAAAAAAAAAAAAAAAAAAAA", "k"}, {"AAAAAAAAAAAAAAAAAAAAAA:label", "elsewhere"}, {holdfast.Owner(theirs), "theirs"}, {ids[0], "theirs"}, {ids[0] + ":x", "k"},
		} {
			texts = append(texts, fmt.Sprintf("%s\n%d\n%d\n%s", g.owner, at, at, g.key))
		}
		keys := b.Redis.Keys()
		b.ResetCommands()
		under, goroutines, memory := holdfast.Under(r.Locker), runtime.NumGoroutine(), heap()
		most := 0
		for i := range many {
			b.Redis.Publish(to, texts[i%len(texts)])
			most = max(most, runtime.NumGoroutine())
		}
		synctest.Wait()
		if n, bytes := most-goroutines, heap()-memory; n > 10 || bytes > 10<<20 {
			t.Errorf("%d more goroutines, %d more bytes", n, bytes)
		}
		if n := holdfast.Under(r.Locker) - under; n != 0 || b.Commands().Total() != 0 {
			t.Errorf("%d more under way, %v", n, b.Commands())
		}
		if now := b.Redis.Keys(); !slices.Equal(now, keys) {
			t.Errorf("keys %v, %v before", now, keys)
		}
		w := watchKey(t, b, "k")
		release(t, lock)
		lock, waited := w.get(c)
		if waited > 0 {
			t.Errorf("the waiter was served after %v", waited)
		}
		time.Sleep(6 * time.Second)
		report := fmt.Sprint(many, " messages that were not for this Locker were dropped")
		if n := told.count(report, "may PUBLISH to "+to); n != 1 || len(told.all()) != 1 {
			t.Errorf("reported: %v", told.all())
		}
		for range 180 { // once a second
			b.Redis.Publish(to, texts[0])
			time.Sleep(time.Second)
		}
		if n := told.count(" messages that were not for this Locker were dropped"); n < 3 || n > 4 || len(told.all()) != n {
			t.Errorf("reported in three minutes: %v", told.all())
		}
		release(t, lock)
		w.end()
		release(t, theirs)
		empty(t, b, holder, r, stranger)
	})
}

// This is a limit: see SECURITY.md. A client that may read the line as well as PUBLISH knows which owner waits, and can
// make that waiter believe that it holds the lock. It finds out at its first renewal, a third of the short lease of a
// grant later at most, and its token is one that Redis' clock could have given.
func TestGrantForgedForAWaiter(t *testing.T) {
	granting(t, func(t *testing.T, b *servertest.Bubble, holder, r *replica, lock *holdfast.Lock) {
		to := inboxes(t, b, r)[0]
		c := call(background, r, "k")
		time.Sleep(100 * time.Millisecond)
		forge := func(ahead time.Duration) (token int64) {
			ids, _ := b.Redis.HKeys("{k}:~wait")
			now := time.Now()
			token = now.Add(ahead).UnixMicro()
			b.Redis.Publish(to, fmt.Sprintf("%s\n%d\n%d\nk", ids[0], token, now.UnixMicro()))
			return token
		}
		for _, ahead := range []time.Duration{11 * time.Second, time.Hour, 100 * 365 * 24 * time.Hour} {
			forge(ahead)
			notYet(t, c) // it has looked, and is told of the next
			time.Sleep(time.Millisecond)
		}
		token := forge(0)
		forged := got(t, c)
		if forged.Token() != token {
			t.Errorf("token %d, want %d", forged.Token(), token)
		}
		begin := time.Now()
		<-forged.Context(background).Done()
		lasted(t, begin, 0, time.Second) // for which there are two holders
		wantIs(t, forged.Release(background), holdfast.ErrLost)
		release(t, lock)
	})
}

// With several masters a message says that a lock is free. It is not acted upon unless it is about one's own waiter, so that
// nobody is taken out of a line, and nothing is freed.
func TestRedLockForgedMessages(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		var told reported
		holder, victim := ms.voter(t, redlock.WithQuarantine(0)), ms.voter(t, redlock.WithQuarantine(0), holdfast.WithTrace(told.trace()))
		other := acquire(t, holder.Locker, "other")
		ctx, cancel := context.WithCancel(background)
		waits := call(ctx, &replica{Locker: victim.Locker}, "other") // opens the inboxes
		var lines []string
		for end := time.Now().Add(10 * time.Second); len(lines) == 0 && time.Now().Before(end); {
			time.Sleep(time.Second)
			lines, _ = ms[0].Redis.ZMembers("{other}:~line")
		}
		if len(lines) != 1 {
			t.Fatalf("line %v", lines)
		}
		var to []string
		for _, m := range ms {
			to = append(to, m.Redis.PubSubChannels("")...)
		}
		if len(to) != len(ms) {
			t.Fatalf("inboxes %v", to)
		}
		own := acquire(t, victim.Locker, "k")
		theirs, id := holdfast.Owner(other), holdfast.Owner(own)
		publish := func(n int, owner, key string) (commands int) {
			t.Helper()
			synctest.Wait()
			before := ms.commands()
			for range n {
				for i, m := range ms {
					m.Redis.Publish(to[i], fmt.Sprintf("%s\n0\n%d\n%s", owner, time.Now().UnixMicro(), key))
				}
			}
			synctest.Wait()
			return ms.commands() - before
		}
		for _, g := range []struct{ owner, key string }{
			{id, "k"}, {theirs, "other"}, {"~0946684800000000" + id[:22], "k"}, {"~0946684800000000" + theirs[:22], "other"}, {lines[0], "k"}, {"~", "k"}, {"", ""},
		} {
			if n := publish(100, g.owner, g.key); n != 0 {
				t.Errorf("%q for %q: %d commands", g.owner, g.key, n)
			}
		}
		if n := ms.having("k"); n < 2 || own.Err() != nil {
			t.Errorf("%d masters have the lock, %v", n, own.Err())
		}
		if now, _ := ms[0].Redis.ZMembers("{other}:~line"); !slices.Equal(now, lines) {
			t.Errorf("the line is %v, was %v", now, lines)
		}
		cancel()
		<-waits
		time.Sleep(time.Second)
		// One's own that has left is taken out again, once for many messages.
		if n := publish(100, lines[0], "other"); n != len(ms) {
			t.Errorf("%d commands for a waiter that has left, want %d", n, len(ms))
		}
		time.Sleep(time.Minute)
		publish(1, "x", "k") // with the next message it is time for a report
		if n := told.count("messages that were not for this Locker were dropped"); n < len(ms) || n > 2*len(ms) {
			t.Errorf("reported: %v", told.all())
		}
		release(t, own)
		release(t, other)
		shutdown(t, victim.Locker)
		shutdown(t, holder.Locker)
	})
}

// Replies that no Redis gives, on the connection of an inbox, end that connection and not the program.
func TestInboxWithRepliesThatNoRedisGives(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var told reported
		holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTrace(told.trace()))
		warm(t, r)
		replies := []string{
			"*0\r\n", "*1\r\n:1\r\n", "*1\r\n$9\r\nsubscribe\r\n", "*2\r\n$7\r\nmessage\r\n$1\r\nx\r\n", "%1\r\n*0\r\n:1\r\n", "*9223372036854775807\r\n",
			"$9223372036854775807\r\n", "\x00\xff\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n",
		}
		var next atomic.Int64
		b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd != "SUBSCRIBE" || int(next.Load()) >= len(replies) {
				return false
			}
			c.WriteRaw(replies[next.Add(1)-1])
			return true
		})
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		time.Sleep(30 * time.Second)
		if n := int(next.Load()); n != len(replies) {
			t.Errorf("%d of %d connections were tried", n, len(replies))
		}
		if n := told.count("waiters poll, because SUBSCRIBE failed", "cannot make sense of a reply"); n < 5 {
			t.Errorf("reported: %v", told.all())
		}
		begin := time.Now()
		release(t, lock)
		release(t, got(t, c))
		lasted(t, begin, 0)
		empty(t, b, holder, r)
	})
}

// inboxes opens the inbox of each of rs, and returns their channels in that order.
func inboxes(t *testing.T, b *servertest.Bubble, rs ...*replica) (channels []string) {
	t.Helper()
	for _, r := range rs {
		openInbox(t, b, r)
		for _, channel := range b.Redis.PubSubChannels("") {
			if !slices.Contains(channels, channel) {
				channels = append(channels, channel)
			}
		}
	}
	if len(channels) != len(rs) {
		t.Fatalf("inboxes %v", channels)
	}
	return channels
}

// nextMessage returns a function that returns the next message that arrives over link.
func nextMessage(link *servertest.Link) func() string {
	var text atomic.Value
	link.OnMessage(func(_, payload string) servertest.Verdict {
		text.CompareAndSwap(nil, strings.Clone(payload))
		return servertest.Pass
	})
	return func() string { s, _ := text.Load().(string); return s }
}
