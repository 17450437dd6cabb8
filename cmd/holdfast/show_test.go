package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func (r result) details(t *testing.T) (d details) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	return d
}

func TestShowTellsOfHolderLineAndHistory(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		const key = "{shop}order 1"
		l := newLocker(t, rdb, holdfast.WithLocalHandover(0, 0))
		var lost []int64
		for range 2 { // Redis forgets the lock, and the next tenure finds it unreleased
			lost = append(lost, acquire(t, l, key).Token())
			rdb.Del(t.Context(), key)
		}
		d := play(t, addr, "show", "-json", key).details(t)
		if d.State != free || d.Token != lost[1] || d.History == nil || d.History.Live != lost[1] || len(d.History.Lost) != 1 || d.History.Lost[0] != lost[0] {
			t.Errorf("free and not released: %+v, %+v", d, d.History)
		}
		if r := play(t, addr, "show", key); !strings.Contains(r.stdout, "its lease ran out") {
			t.Errorf("free and not released: %v", r)
		}
		lock := acquire(t, l, key, holdfast.WithLabel("api-1"))
		wait(t, rdb, key, "w1", 1)
		wait(t, rdb, key, "", 2)
		var r result
		until(t, "the line is seen", func() bool { // a place in line that was not refreshed for 5 s is given up
			d, r = play(t, addr, "show", "-json", key).details(t), play(t, addr, "show", key)
			return d.Waiting == 2 && len(d.Line) == 2 && d.Line[0] != d.Line[1] && strings.Count(r.stdout, "w1,") == 1 && strings.Contains(r.stdout, "2. ")
		})
		if d.Key != key || d.State != held || d.Label != "api-1" || d.Token != lock.Token() || d.LeftMS <= 0 || d.LeftMS > 60_000 {
			t.Errorf("held: %+v", d)
		}
		if h := d.History; h == nil || h.Live != lock.Token() || fmt.Sprint(h.Lost) != fmt.Sprint(lost) || h.Since != lost[0] || h.LeftMS <= 60_000 {
			t.Errorf("the history: %+v", h)
		}
		for _, part := range []string{
			`"{shop}order 1"`, "api-1", fmt.Sprint("token        ", lock.Token()), fmt.Sprint(lost[0], ", issued "), fmt.Sprint(lost[1], ", issued "),
			time.UnixMicro(lock.Token()).UTC().Format("2006-01-02 15:04"),
		} {
			if r.status != 0 || !strings.Contains(r.stdout, part) {
				t.Errorf("want %q in %v", part, r)
			}
		}
		if q := play(t, addr, "show", "-json", "-quoted", `"{shop}order\x201"`).details(t); q.Label != "api-1" {
			t.Errorf("-quoted: %+v", q)
		}
	})
}

func TestShowTellsOfReleasedForeignAndDamagedKeys(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		l := newLocker(t, rdb)
		lock := acquire(t, l, "k")
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := play(t, addr, "show", "k"); r.status != 0 || !strings.Contains(r.stdout, "released") || !strings.Contains(r.stdout, "free") || strings.Contains(r.stdout, "holder") {
			t.Errorf("released: %v", r)
		}
		rdb.Set(t.Context(), "rival", "host-1\x1b[2J", 0)
		const id = "AAECAwQFBgcICQoLDA0ODw"
		for i, m := range []string{id + ":w1", id, "~0001", id + ":lost"} {
			rdb.ZAdd(t.Context(), "{rival}:~line", redis.Z{Member: fmt.Sprintf(" %016d%s", i, m)})
		}
		later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
		rdb.HSet(t.Context(), "{rival}:~wait", id+":w1", later+" 1 3000 75000 1 1 1: 1 holdfast:inbox:x", id, later+" 1 3000 75000 1 1 1: 1 -", "~0001", "1 40 1 holdfast:inbox:x")
		if r := play(t, addr, "show", "rival"); r.status != 0 || !strings.Contains(r.stdout, `"host-1\x1b[2J"`) || !strings.Contains(r.stdout, "forever") ||
			!strings.Contains(r.stdout, "1. w1, will be notified") || !strings.Contains(r.stdout, "2. -, polls") ||
			!strings.Contains(r.stdout, "3. -, gone") || !strings.Contains(r.stdout, "4. lost, gone") || !strings.Contains(r.stdout, "foreign") || !strings.Contains(r.stdout, "not remembered") {
			t.Errorf("foreign: %v", r)
		}
		held := acquire(t, l, "damaged")
		rdb.Del(t.Context(), "{damaged}:~fence")
		rdb.LPush(t.Context(), "{damaged}:~fence", "x")
		rdb.Set(t.Context(), "{damaged}:~line", "x", 0)
		if d := play(t, addr, "show", "-json", "damaged").details(t); d.State != "held" || d.History != nil || d.Line != nil {
			t.Errorf("damaged: %+v", d)
		}
		rdb.Del(t.Context(), "{damaged}:~fence", "{damaged}:~line")
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
		rdb.LPush(t.Context(), "list", "x")
		for key, want := range map[string]struct {
			status int
			text   string
		}{"unknown": {3, "nothing is known"}, "list": {69, "another type"}, "a}b": {64, "cannot be a lock's key"}, "": {64, "cannot be a lock's key"}, "{k}:~fence": {64, "cannot be a lock's key"}} {
			if r := play(t, addr, "show", key); r.status != want.status || !strings.Contains(r.stderr, want.text) || r.stdout != "" {
				t.Errorf("%q: want status %d and %q, got %v", key, want.status, want.text, r)
			}
		}
		if r := play(t, addr, "show", "-json", "unknown"); r.status != 3 || r.details(t).State != free {
			t.Errorf("in JSON: %v", r)
		}
	})
}

func TestShowTellsOfTicksAndOfThoseWhoHoldTogether(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		l := newLocker(t, rdb)
		acquire(t, l, "k", holdfast.WithReentryID("saga"), holdfast.WithLabel("one"))
		acquire(t, newLocker(t, rdb), "k", holdfast.WithReentryID("saga"), holdfast.WithLabel("two"))
		d := play(t, addr, "show", "-json", "k").details(t)
		if len(d.Members) != 2 || d.Members[0].Label != "one" || d.Members[1].Label != "two" || d.Members[0].LeftMS <= 0 {
			t.Errorf("held together: %+v", d.Members)
		}
		if r := play(t, addr, "show", "k"); strings.Count(r.stdout, "held together") != 2 {
			t.Errorf("held together: %v", r)
		}
		at := time.Now().Truncate(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		if ok, err := tick.Claim(ctx, l, "job", at); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if d := play(t, addr, "show", "-json", "job").details(t); d.Tick != at.UTC().Format(time.RFC3339Nano) {
			t.Errorf("claimed: %+v", d)
		}
		if r := play(t, addr, "show", "job"); r.status != 0 || !strings.Contains(r.stdout, "claimed") {
			t.Errorf("claimed: %v", r)
		}
	})
}

func TestShowTellsOfPermitsReadersAndTheirLine(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		first, reader := takeSeveral(t, rdb)
		for key, want := range map[string][]string{
			"permits": {
				"holder       2 of 2\n", `permit       "api 1", `, fmt.Sprintf("token %d, issued %s UTC, limit 3\n", first.Token(), tokenTime(first.Token())),
				"permit       api-2, ", "limit 2\n", " UTC, to the latest of them\n", "1. api-3, for a permit of 2, will", "2. -, for a permit of 4, will",
			},
			"prices": {
				"holder       3 readers\n", "reader       reader-1, ", fmt.Sprintf("token %d, issued %s UTC\n", reader.Token(), tokenTime(reader.Token())),
				"reader       -, ", "1. writer, to be alone, will", "2. reader-2, to read, will",
			},
			"c": {`holder       "transfer 1"`, `1. "transfer 2", will`},
		} {
			until(t, key, func() bool { // a place in line that was not refreshed for 5 s is given up
				r := play(t, addr, "show", key)
				return r.status == 0 && !slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(r.stdout, part) })
			})
		}
		d := play(t, addr, "show", "-json", "permits").details(t)
		if d.Holders != 2 || d.Limit != 2 || d.LeftMS != min(d.Members[0].LeftMS, d.Members[1].LeftMS) {
			t.Errorf("got %+v, %+v", d.row, d.Members)
		}
		// Nobody is left, and no next one has come upon it.
		rdb.HSet(t.Context(), "{permits}:~held", "@x", "1 2 7")
		for field := range rdb.HGetAll(t.Context(), "{permits}:~held").Val() {
			if strings.HasPrefix(field, "@") && field != "@x" {
				rdb.HDel(t.Context(), "{permits}:~held", field)
			}
		}
		if d := play(t, addr, "show", "-json", "permits").details(t); d.State != free || d.Holders != 0 {
			t.Errorf("nobody holds it: %+v", d.row)
		}
	})
}

// Waiters of several names take turns by name, and ls and show say so.
func TestNamesOfWaiters(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		acquire(t, newLocker(t, rdb), "k")
		wait(t, rdb, "k", "one", 1, holdfast.WithShare("tenant a"))
		wait(t, rdb, "k", "two", 2, holdfast.WithShare("tenant a"))
		wait(t, rdb, "k", "three", 3, holdfast.WithShare("b"))
		until(t, "show", func() bool {
			r := play(t, addr, "show", "k")
			parts := []string{"waiting      3 of 2 names\n", `1. three of b, will`, `2. one of "tenant a", will`, `3. two of "tenant a", will`}
			return r.status == 0 && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(r.stdout, part) })
		})
		until(t, "ls", func() bool { return play(t, addr, "ls").table(t)["k"][5] == "3 of 2 names: three, one, two" })
		if d := play(t, addr, "show", "-json", "k").details(t); d.Waiting != 3 || d.Shares != 2 || len(d.Line) != 3 || d.Line[1].Share != "tenant a" {
			t.Errorf("got %+v, %+v", d.row, d.Line)
		}
	})
}

func TestHistoryOfWhatIsNoFence(t *testing.T) {
	for fence, want := range map[string]string{
		"9 8 7":                "[9 8 7]",
		"9 0 7 1 2":            "[9 0 7 1 2]",
		"":                     "",
		"9 8":                  "",
		"9 8 x":                "",
		"-9 8 7":               "",
		"9007199254740993 8 7": "",
	} {
		got := ""
		if h := newHistory(fence, time.Second); h != nil {
			got = fmt.Sprint(append([]int64{h.Last, h.Live, h.Since}, h.Lost...))
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", fence, got, want)
		}
	}
	now := time.UnixMilli(1000)
	for entry, want := range map[string]waiter{
		"1001 3000 75000 1 1 holdfast:inbox:x": {Told: true}, "1001 3000 75000 1 1 -": {}, "1000 3000 75000 1 1 -": {Gone: true},
		"1001 40 1 holdfast:inbox:x": {Told: true}, "": {Gone: true},
		"1001 1 3000 75000 1 1 1: 1 -": {}, "1001 1 3000 75000 1 3 1: 1 -": {Limit: 3}, "1001 1 3000 75000 1 1048576 1: 0 x": {Told: true, Shared: true}, "1001 1 3000 75000 1 3 7:a+b 1 -": {Limit: 3, Share: "a b"},
		"1001 3000 75000 1 x 0 x": {Told: true}, "x y": {Told: true, Gone: true},
	} {
		if got := newWaiter("id", entry, now); got != want {
			t.Errorf("%q: got %+v, want %+v", entry, got, want)
		}
	}
	// Of another holder, and of one that is gone.
	if got := newMembers(map[string]string{"of": "v", "@a": "2000", "@b": "1000", "id": "x"}, "v", now); len(got) != 1 || got[0].LeftMS != 1000 {
		t.Errorf("got %+v", got)
	}
	if got := newMembers(map[string]string{"of": "w", "@a": "2000"}, "v", now); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestServerShowReadsAtOneMoment(t *testing.T) {
	s := servertest.Redis(t)
	lock := acquire(t, newLocker(t, s.Client()), "k")
	// As where a block of tokens is reserved, to be handed over within the process.
	s.Client().Set(t.Context(), "{k}:~fence", fmt.Sprint(lock.Token()+64, lock.Token(), lock.Token()), redis.KeepTTL)
	if r := play(t, s.Addr(), "show", "k"); !strings.Contains(r.stdout, fmt.Sprint(lock.Token()+64, ", the end of a reserved block")) {
		t.Errorf("got %v", r)
	}
	s.ResetStats(t)
	d := play(t, s.Addr(), "show", "-json", "k").details(t)
	if d.Token != lock.Token() || d.History == nil || d.History.Last != d.Token+64 {
		t.Errorf("want token %d, got %+v, %+v", lock.Token(), d, d.History)
	}
	if stats := s.CommandStats(t); stats["multi"] != 1 || stats["exec"] != 1 || stats["getrange"] != 3 || stats["scan"] != 0 || stats["keys"] != 0 {
		t.Errorf("got %v", stats)
	}
}
