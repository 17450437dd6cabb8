package single

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A message grants the waiter that it names the lock that this waiter wants, or undoes the grant of an owner of this Locker
// that has ended, or is counted. A grant is relied upon where it is newer than what the waiter has seen, and no longer than
// it can be true. ME stands for the waiter, OLD for the owner that has ended.
func FuzzMessages(f *testing.F) {
	for _, text := range []string{
		"", " ", "a b c d", "ME 1 b k", "ME b 1 k", "ME 1 1 ", "ME 1 1 {}k", "ME 1 1 k\x00", "ME -1 -1 k", "ME 1 1 k:~fence", "ME 99999999999999999999 1 k", "ME 1 1 " + strings.Repeat("k", 600),
		"nobody 1 1 k", "nobody 1 1 other", " 1 1 k", "ME 0 0 k", "ME 1 9223372036854775807 k", "ME 9223372036854775807 -9223372036854775808 k", "ME 946684800000071 946684800100000 k", "ME 946684800000071 946684800100000 k k",
		"OLD 1 1 k", "OLD 1 1 other", "OLD 1 1 k\x00", "OLD 946684800000071 946684800100000 k", "OLDx 1 1 k", "OLD:x 1 1 k", "OLD: 1 1 k", "~OLD 1 1 k", "~0946684800000000OLD 1 1 k", "OLDME 1 1 k", "ME 5 5 other",
		"ME 946684800000071 946684799900000 k", "ME 71 946684800100000 k", "ME 946684800000071  k", "ME +5 +946684800100000 k", "ME 0x5 1 k", "ME 1_0 1 k", "ME\t1 1 k", "MEME 1 1 k", "ME 5 946684900000000 k", "\xff 1 1 \xfe",
	} {
		f.Add(strings.ReplaceAll(text, " ", "\n"), int64(946_684_800_000_000), int64(70), uint16(200))
	}
	f.Add("ME\n5\n9223372036854775\nk", int64(1), int64(4), uint16(65535))
	f.Add("ME\n9007199254740991\n5\nk", int64(5), int64(9_007_199_254_740_990), uint16(0))
	f.Add("ME\n18446744073709552\n19393428873709552\nk", int64(946_684_800_000_000), int64(70), uint16(200))
	form := regexp.MustCompile(`(?s)^([^\n]*)\n([-+]?[0-9]+)\n([-+]?[0-9]+)\n(.*)$`)
	f.Fuzz(func(t *testing.T, text string, seen, last int64, waited uint16) {
		seen, last = seen&(1<<53-1), last&(1<<53-1) // as a server has them
		synctest.Test(t, func(t *testing.T) {
			server := &forgetful{}
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			defer rdb.Close()
			rdb.AddHook(server)
			r := New(rdb, timing.NewEnv(), "in", func(error) {})
			key, err := protocol.CheckKey("k")
			if err != nil {
				t.Fatal(err)
			}
			waiter := new(Owner)
			waiter.Init(r, key.Owned(r.Seal, "api 7f9c"), Want{TTL: time.Minute, Label: "api 7f9c", Block: 1})
			r.inbox.set(true)
			r.expect(waiter)
			waiter.latest = &look{r.Env.Now(), seen, last}
			wake := waiter.Wake()
			ended := key.Owned(r.Seal, "")
			names := strings.NewReplacer("ME", waiter.ID, "OLD", ended.Owner())
			time.Sleep(time.Duration(waited) * time.Millisecond)

			r.inbox.message(names.Replace(text))
			synctest.Wait()
			var want grant
			mine, old := false, false
			if parts := form.FindStringSubmatch(text); parts != nil {
				token, err1 := strconv.ParseInt(parts[2], 10, 64)
				at, err2 := strconv.ParseInt(parts[3], 10, 64)
				known := errors.Join(err1, err2) == nil && parts[4] == "k"
				if mine, old = known && parts[1] == "ME", known && parts[1] == "OLD"; mine {
					want = grant{token, at}
				}
			}
			var got grant
			select {
			case <-wake:
				got = waiter.grant
			default:
			}
			dropped := 0
			if !mine && !old {
				dropped = 1
			}
			if got != want || server.asked.Load() != old || r.inbox.dropped != dropped {
				t.Fatalf("%q: got %+v, want %+v; undone %v, want %v; dropped %d, want %d",
					text, got, want, server.asked.Load(), old, r.inbox.dropped, dropped)
			}
			now := r.Env.Now()
			token, from, d := waiter.Accept(now)
			switch span := time.Duration(want.time-seen) * time.Microsecond; {
			case !mine, token == 0:
			case token != want.token, d != grantLease:
				t.Fatalf("%q: token %d, lease %v", text, token, d)
			case want.token <= last, want.time < seen, seen == 0, want.token > max(last, want.time)+tokenAhead.Microseconds():
				t.Fatalf("%q, seen %d, last %d: relied on", text, seen, last)
			case from.Mono < waiter.latest.at.Mono-span/100, from.Mono > now.Mono, from.Mono > waiter.latest.at.Mono+span:
				t.Fatalf("%q, seen %d: relied on from %v on, of %v to %v", text, seen, from.Mono, waiter.latest.at.Mono, now.Mono)
			}
			r.unexpect(waiter)
			r.Close(true)
			r.Env.Gate.Close()
			if err := r.Env.Gate.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// forgetful is a server that has no record of anything.
type forgetful struct{ asked atomic.Bool }

func (s *forgetful) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *forgetful) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		s.asked.Store(true)
		cmd.(interface{ SetVal(any) }).SetVal(int64(protocol.Unknown))
		return nil
	}
}

func (s *forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Whatever a server sends on the connection of an inbox, it ends the subscription at most, with an error.
func FuzzSubscriptions(f *testing.F) {
	for _, reply := range []string{
		"*0\r\n", ">0\r\n", "~0\r\n", "*1\r\n$-1\r\n", "*1\r\n:1\r\n", "*1\r\n$9\r\nsubscribe\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n$1\r\n1\r\n", "*-1\r\n", "$-1\r\n", "_\r\n", ":5\r\n",
		"*3\r\n$7\r\nmessage\r\n:1\r\n$1\r\nx\r\n", "*2\r\n$7\r\nmessage\r\n$1\r\nx\r\n", "*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n*1\r\n:1\r\n", "*1\r\n$4\r\npong\r\n", "*2\r\n$8\r\npmessage\r\n$1\r\nx\r\n",
		"%1\r\n*0\r\n:1\r\n", "%1\r\n~0\r\n:1\r\n", "|1\r\n", "+OK\r\n", "-ERR no\r\n", "\r\n", "\n", "\x00\xff\xfe", "HTTP/1.1 400 Bad Request\r\n\r\n", "*9223372036854775807\r\n", "$9223372036854775807\r\n", "$-9\r\n", "*-9\r\n",
		"*3\r\n$9\r\nsubscribe\r\n$2\r\nin\r\n:1\r\n*0\r\n", "*3\r\n$9\r\nsubscribe\r\n$2\r\nin\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$2\r\nin\r\n$7\r\na\n1\n1\nk\r\n",
	} {
		f.Add([]byte(reply))
	}
	large := regexp.MustCompile(`[0-9]{5,18}`) // go-redis reserves as much memory as a reply says that it has
	f.Fuzz(func(t *testing.T, reply []byte) {
		if large.Match(reply) && !strings.Contains(string(reply), "9223372036854775807") {
			t.Skip()
		}
		synctest.Test(t, func(t *testing.T) {
			b := servertest.NewBubble(t)
			b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
				if cmd != "SUBSCRIBE" {
					return false
				}
				c.WriteRaw(string(reply))
				return true
			})
			in := NewInbox(redisconn.New(b.Client(), timing.NewEnv()), "in", protocol.NewSeal().Owns, nil)
			in.Dropped = func(error) {}
			time.AfterFunc(time.Minute, in.Close)
			if err := in.receive(); err == nil {
				t.Error("ended without an error")
			}
			in.Close()
		})
	})
}
