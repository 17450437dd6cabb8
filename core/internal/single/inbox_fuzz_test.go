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

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// A message grants what it names to whom it names, or nothing to nobody; and a grant is relied upon where it is newer than
// what the waiter has seen, and no longer than it can be true. ME stands for the waiter.
func FuzzMessages(f *testing.F) {
	for _, text := range []string{
		"", " ", "a b c d", "ME 1 b k", "ME b 1 k", "ME 1 1 ", "ME 1 1 {}k", "ME 1 1 k\x00", "ME -1 -1 k", "ME 1 1 k:~fence", "ME 99999999999999999999 1 k", "ME 1 1 " + strings.Repeat("k", 600),
		"nobody 1 1 k", "nobody 1 1 other", " 1 1 k", "ME 0 0 k", "ME 1 9223372036854775807 k", "ME 9223372036854775807 -9223372036854775808 k", "ME 946684800000071 946684800100000 k", "ME 946684800000071 946684800100000 k k",
		"ME 946684800000071 946684799900000 k", "ME 71 946684800100000 k", "ME 946684800000071  k", "ME +5 +946684800100000 k", "ME 0x5 1 k", "ME 1_0 1 k", "ME\t1 1 k", "MEME 1 1 k", "ME 5 946684900000000 k", "\xff 1 1 \xfe",
	} {
		f.Add(strings.ReplaceAll(text, " ", "\n"), int64(946_684_800_000_000), int64(70), uint16(200))
	}
	f.Add("ME\n5\n9223372036854775\nk", int64(1), int64(4), uint16(65535))
	f.Add("ME\n9007199254740991\n5\nk", int64(5), int64(9_007_199_254_740_990), uint16(0))
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
			waiter.Init(r, key.Owned("api 7f9c"), Want{TTL: time.Minute, Label: "api 7f9c", Block: 1})
			r.inbox.set(true)
			r.expect(waiter)
			waiter.latest = &look{r.Env.Now(), seen, last}
			wake := waiter.Wake()
			time.Sleep(time.Duration(waited) * time.Millisecond)

			r.inbox.message(strings.ReplaceAll(text, "ME", waiter.ID))
			synctest.Wait()
			var want protocol.Grant
			mine, others := false, false
			if parts := form.FindStringSubmatch(text); parts != nil {
				token, err1 := strconv.ParseInt(parts[2], 10, 64)
				at, err2 := strconv.ParseInt(parts[3], 10, 64)
				key := strings.ReplaceAll(parts[4], "ME", waiter.ID)
				_, err3 := protocol.CheckKey(key)
				known := errors.Join(err1, err2, err3) == nil
				if mine, others = known && parts[1] == "ME", known && parts[1] != "ME"; mine {
					want = protocol.Grant{Owner: waiter.ID, Token: token, Time: at, Key: key}
				}
			}
			var got protocol.Grant
			select {
			case got = <-wake:
			default:
			}
			if got != want || server.asked.Load() != others {
				t.Fatalf("%q: got %+v, want %+v; undone %v", text, got, want, server.asked.Load())
			}
			now := r.Env.Now()
			token, from, d := waiter.Accept(got, now)
			switch span := time.Duration(want.Time-seen) * time.Microsecond; {
			case !mine, token == 0:
			case token != want.Token, d != grantLease:
				t.Fatalf("%q: token %d, lease %v", text, token, d)
			case want.Token <= last, want.Time < seen, seen == 0:
				t.Fatalf("%q, seen %d, last %d: relied on", text, seen, last)
			case from.Mono < waiter.latest.at.Mono-span/100, from.Mono > now.Mono, from.Mono > waiter.latest.at.Mono+span:
				t.Fatalf("%q, seen %d: relied on from %v on, of %v to %v", text, seen, from.Mono, waiter.latest.at.Mono, now.Mono)
			}
			r.unexpect(waiter)
			r.Close()
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
