package holdfast_test

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Whatever somebody else writes into the keys of a lock, tokens rise, as long as the clock does and where the fence still
// has the last one beyond that too; and the scripts leave a fence that is whole behind, or say that tokens are used up.
func FuzzDamagedKeys(f *testing.F) {
	for _, fence := range []string{
		"", "not a fence", "70 70 50", "70 0 50 60", "70 70 5 10 11 12 13 14 15 16 17", "70 70 5 10 11 12 13 14 15 16 17 18 19 20", "70 70", "70  70 50", " 70 70 50",
		"70 70 50 ", "70 70 50  60", "70 70 50x", "70 70 5x1 2 3 4 5 6 7 8 9", "70 70 5 x 1 2 3 4 5 6 7 8 9", "-1 0 0", "+7 7 7", "0 0 0", "7 0 9", "9007199254740990 0 1",
		"9007199254740991 0 1", "9007199254740992 0 1", "99999999999999999999 1 1", "1e300 1 1", "0x10 1 1", "70 99999999999999999999 1", "70 9007199254740993 1", "70 70 99999999999999999999", "1 1 1\n", "1\t1\t1", "1 1 1\x00", "1.5 1 1", "\xff",
	} {
		f.Add(fence, "", "", "")
	}
	for _, entry := range []string{
		"9999999999999 1700000000000000 1000 61000 1 1 1: 0 -", "9999999999999 1700000000000000 1000 61000 1 1 1: 1 inbox", "0 1700000000000000 1000 61000 1 1 1: 0 -", "9999999999999 1700000000000000 0 61000 1 1 1: 0 -", "9999999999999 1700000000000000 1000 0 1 1 1: 0 -", "9999999999999 1700000000000000 1000 61000 0 1 1: 0 -",
		"9999999999999 1700000000000000 1000 61000 99999999999999999999 1 1: 0 -", "99999999999999999999999 1700000000000000 1 1 1 1 1: 9 x", "9999999999999 1700000000000000 1000 61000 1 3 1: 0 -", "9999999999999 1700000000000000 1000 61000 1 1=job 1: 0 -", "9999999999999 1700000000000000 99999999999999999999 61000 1 1 1: 0 -", "9999999999999 1700000000000000 1000 99999999999999999999 1 1 1: 0 -", "garbage", "",
	} {
		f.Add("70 70 50", entry, "", "w")
	}
	for _, mark := range []string{"garbage", "1 x", "99999999999999999999 x", "9007199254740993 me", " 1 x", "1 ", "-5 x", "1e9 x"} {
		f.Add("", "", mark, "")
	}
	m := miniredis.NewMiniRedis()
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	f.Cleanup(func() { _ = rdb.Close(); m.Close() })
	locker, err := holdfast.New(rdb)
	if err != nil {
		f.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, fence, entry, mark, waiter string) {
		run := func(s holdfast.Script, args ...any) any {
			v, err := s.Run(background, rdb, args...)
			if err != nil {
				t.Fatalf("fence %q, entry %q of %q: %v", fence, entry, waiter, err)
			}
			return v
		}
		acquire := func(owner string) any { return run(holdfast.AcquireScript, acquireArgs(owner, 5000)...) }
		step := func() int64 { now = now.Add(time.Second); m.SetTime(now); return now.UnixMicro() }
		conn, err := m.Dial() // there is nothing to flush before
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		m.FlushAll()

		step()
		first, _ := acquire("one").(int64)
		if first != now.UnixMicro() {
			t.Fatalf("token %d at %d", first, now.UnixMicro())
		}
		m.Del("k")
		_ = m.Set(fenceKey, fence)
		if waiter != "" {
			m.HSet(waitKey, waiter, entry)
			_, _ = m.ZAdd(lineKey, 0, " 1700000000000000"+waiter)
			_, _ = m.ZAdd(lineKey, 0, mark)
		}
		time := step()
		last := int64(0) // that the fence still has
		if parts := wellFormed.FindStringSubmatch(fence); parts != nil {
			last, _ = strconv.ParseInt(parts[1], 10, 64)
		}
		check := func(token int64) {
			t.Helper()
			if token < time || token <= first || token <= last || token >= 1<<53 {
				t.Fatalf("fence %q: token %d after %d and %d, at %d", fence, token, first, last, time)
			}
			first = token
		}
		exhausted := func(v any) bool {
			if v != int64(-2) {
				return false
			}
			if last < 1<<53-1 && first < 1<<53-1 {
				t.Fatalf("fence %q: tokens are used up", fence)
			}
			return true
		}
		switch v := acquire("two").(type) {
		case int64:
			if exhausted(v) {
				return
			}
			check(v)
			if again := acquire("two"); again != v {
				t.Fatalf("fence %q: got token %d, and then %v", fence, v, again)
			}
			forget := []any{"k", fenceKey, "{k}:~gone:two", lineKey, waitKey, "two", v, 60_000, 0}
			if got := run(holdfast.ForgetScript, forget...); got != int64(1) {
				t.Fatalf("fence %q: released: %v", fence, got)
			}
			got := run(holdfast.ForgetScript, forget...)
			if since := strings.Fields(fence); got == int64(3) && len(since) > 2 && len(since[2]) > 9 {
				break // it says to know nothing of tokens as small as this
			}
			if got != int64(2) {
				t.Fatalf("fence %q: released again: %v", fence, got)
			}
		case []any: // the one in line has it
			if v[2] != waiter && v[2] != "="+waiter || waiter == "" {
				t.Fatalf("fence %q, entry %q: %v", fence, entry, v)
			}
		}
		text, _ := m.Get(fenceKey)
		if !wellFormed.MatchString(text) {
			t.Fatalf("fence %q, entry %q: left as %q", fence, entry, text)
		}
		var issued, live int64
		if _, _ = fmt.Sscan(text, &issued, &live); issued < live {
			t.Fatalf("fence %q, entry %q: %q can issue a token again", fence, entry, text)
		}
		for _, key := range []string{"k", lineKey, waitKey} {
			m.Del(key)
		}
		time = step()
		v := acquire("three")
		if token, ok := v.(int64); ok && token > 0 {
			check(token)
		} else if !exhausted(v) {
			t.Fatalf("fence %q: %v", fence, v)
		}
		if text := fmt.Sprint(run(holdfast.InspectScript, "k", fenceKey, lineKey, heldKey)); text[:7] != "[three " && v != int64(-2) {
			t.Fatalf("fence %q: inspect %s", fence, text)
		}

		_ = m.Set("{k}:~mark", mark)
		for _, owner := range []string{"first", "again"} {
			won, err := tick.Claim(background, locker, "k", now)
			if err != nil || owner == "again" && won {
				t.Fatalf("mark %q, %s: %v, %v", mark, owner, won, err)
			}
		}
	})
}

var wellFormed = regexp.MustCompile(`^(\d{1,16}) \d{1,16} \d{1,16}(?: \d{1,16})*(?: s)?(?: w)?$`)
