package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A bundle, and by themselves those that it refuses, come to what all come to by themselves: every reply, every key and
// every time to live, in whatever state it finds the locks. What it settles comes first.
func TestBundleDoesWhatItsCallsDo(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		m := miniredis.RunT(t)
		m.SetTime(time.UnixMicro(1_700_000_000_000_001)) // whose tokens have a 0 in the middle
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer rdb.Close()
		testBundle(t, rdb, rounds(250), func(s string) string { return s })
	})
	t.Run("redis", func(t *testing.T) { testBundle(t, servertest.Redis(t).Client(), rounds(500), mask) })
}

// What is no common case does not travel in a bundle.
func TestBundleKinds(t *testing.T) {
	key, err := CheckKey("k")
	if err != nil {
		t.Fatal(err)
	}
	names := key.Owned(NewSeal(), "")
	with := names
	with.Admits = Admits(1, "id")
	owner, plan, token := "owner", AcquirePlan(time.Second, 1, nil), int64(1)
	for what, row := range map[string][2]Kind{
		"acquire":                        {KindOf(Acquire(nil, &names, &owner, &plan)), Takes},
		"acquire with a re-entry id":     {KindOf(Acquire(nil, &with, &owner, &plan)), Apart},
		"forget":                         {KindOf(Forget(nil, &names, &owner, &token, false)), Forgets},
		"forget that leaves a tombstone": {KindOf(Forget(nil, &names, &owner, &token, true)), Apart},
		"forget with a re-entry id":      {KindOf(Forget(nil, &with, &owner, &token, false)), Apart},
		"renew":                          {KindOf(Renew(nil, &names, &owner, &token)), Apart},
	} {
		if row[0] != row[1] {
			t.Errorf("%s: %d, want %d", what, row[0], row[1])
		}
	}
}

// item is a call on its way.
type item struct {
	script *Script
	args   []any
}

func (c item) do(rdb *redis.Client) (any, error) {
	val, err := rdb.Do(context.Background(), c.args...).Result()
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return rdb.Do(context.Background(), c.script.Full(c.args)...).Result()
	}
	return val, err
}

func (c item) run(rdb *redis.Client) string {
	val, err := c.do(rdb)
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "script") // what follows names lines
		if strings.Contains(err.Error(), "WRONGTYPE") {
			text = "WRONGTYPE"
		}
		return text
	}
	return fmt.Sprint(val)
}

func testBundle(t *testing.T, rdb *redis.Client, rounds int, mask func(string) string) {
	const seed = 1
	var settled, refused [3]int
	for round, tries := 0, 0; round < rounds; round++ {
		rnd := rand.New(rand.NewPCG(seed, uint64(round)))
		setup, calls := scene(t, rnd)
		restore(t, rdb, setup)
		var by [3][][]any
		for _, c := range calls {
			kind := KindOf(c.script, c.args)
			by[kind] = append(by[kind], c.args)
		}
		script, args := Bundle(by[Forgets], by[Takes])
		val, err := item{script, args}.do(rdb)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		replies, ok := ReadBundle(val, len(calls))
		if !ok {
			t.Fatalf("round %d: reply %v", round, val)
		}
		var got, want strings.Builder
		var order []int
		for i, c := range calls {
			kind := KindOf(c.script, c.args)
			if replies[i] != nil {
				settled[kind]++
				fmt.Fprintln(&got, i, replies[i])
				order = append(order, i)
			} else {
				refused[kind]++
			}
		}
		for i, c := range calls {
			if replies[i] == nil {
				fmt.Fprintln(&got, i, c.run(rdb))
				order = append(order, i)
			}
		}
		got.WriteString(dump(t, rdb))

		restore(t, rdb, setup)
		for _, i := range order {
			fmt.Fprintln(&want, i, calls[i].run(rdb))
		}
		want.WriteString(dump(t, rdb))
		tries++
		if got, want := mask(got.String()), mask(want.String()); got == want {
			tries = 0
		} else if tries < 5 {
			round-- // where the machine stood still, other times are left
		} else {
			t.Fatalf("round %d: bundled %v\n%s\none by one\n%s\nof %s", round, val, got, want, strings.Join(setup, "\n"))
		}
	}
	for _, kind := range []Kind{Forgets, Takes} {
		if settled[kind] < rounds/6 || refused[kind] < rounds/6 {
			t.Errorf("kind %d: %d settled, %d refused in %d rounds", kind, settled[kind], refused[kind], rounds)
		}
	}
}

// scene is the commands that lead to a state, and calls to make in it: forgets first.
func scene(t *testing.T, rnd *rand.Rand) (setup []string, calls []item) {
	t.Helper()
	owner, other := "owner", "other"
	tokens := []string{"0", "7", "1600000000000000", "1699999999999999", "9007199254740990", "99999999999999999"}
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	var takes []item
	for i := range 1 + rnd.IntN(4) {
		key := fmt.Sprint("k", i)
		checked, err := CheckKey(key)
		if err != nil {
			t.Fatal(err)
		}
		names := checked.names(owner, "", "")
		if sane := rnd.IntN(4); sane == 0 {
			setup = append(setup, "set "+names.Lock+" "+owner+" px 9000", "set "+names.Fence+" "+tokens[2]+"_"+tokens[2]+"_1 px 70000")
		} else if sane == 1 {
			setup = append(setup, pick("set "+names.Fence+" "+tokens[2]+"_0_1 px 70000", "del "+names.Fence))
		} else {
			setup = append(setup, oddities(rnd, names, tokens, owner, other)...)
		}
		// Nobody takes who frees: rule 1 of tenures.
		taker, frees := pick(owner, other, other, other), false
		for range 1 + rnd.IntN(2) {
			who := taker
			if rnd.IntN(2) == 0 && !frees {
				frees = true
				if who = owner; taker == owner {
					who = other
				}
				token := []int64{1600000000000000, 1600000000000000, 0}[rnd.IntN(3)] // 0 where it was never learned
				s, args := Forget(nil, &names, &who, &token, false)
				calls = append(calls, item{s, args})
				continue
			}
			var waits *Waiting
			if rnd.IntN(2) == 0 {
				waits = &Waiting{First: 5 * time.Second}
			}
			plan := AcquirePlan(time.Duration(5+5*rnd.IntN(2))*time.Second, 1+rnd.IntN(5)/4, waits)
			s, args := Acquire(nil, &names, &who, &plan)
			takes = append(takes, item{s, args})
		}
	}
	rnd.Shuffle(len(takes), func(i, j int) { takes[i], takes[j] = takes[j], takes[i] })
	return setup, append(calls, takes...)
}

// oddities are all that can be in the keys of a lock.
func oddities(rnd *rand.Rand, names Names, tokens []string, owner, other string) (setup []string) {
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	live := pick(tokens...)
	if rnd.IntN(2) == 0 {
		live = "1600000000000000"
	}
	switch rnd.IntN(8) {
	case 0, 1, 2:
		setup = append(setup, "set "+names.Lock+" "+owner+" px 9000")
	case 3:
		setup = append(setup, "set "+names.Lock+" "+pick(other, "=several")+" px 9000")
	case 4:
		setup = append(setup, pick("hset "+names.Lock+" a b", "set "+names.Lock+" "+owner))
	}
	last := pick(live, live, tokens[2], tokens[4])
	switch rnd.IntN(10) {
	case 0, 1, 2:
		setup = append(setup, "set "+names.Fence+" "+last+"_0_"+pick("1", "0", last)+" px 70000")
	case 3, 4, 5, 6:
		setup = append(setup, "set "+names.Fence+" "+last+"_"+live+"_"+pick("1", last)+pick("", "", "", "_5", "_w", "_5_w")+" px 70000")
	case 7:
		setup = append(setup, pick("hset "+names.Fence+" a b", "set "+names.Fence+" x"))
	}
	if rnd.IntN(8) == 0 {
		setup = append(setup, "set "+names.Gone+" 1 px 60000")
	}
	switch rnd.IntN(8) {
	case 0:
		setup = append(setup, "zadd "+names.Line+" 0 _1600000000000001"+other, "pexpire "+names.Line+" 5000",
			"hset "+names.Waits+" "+other+" 99999999999999_1600000000000001_5000_75000_1_1_1:_0_-", "pexpire "+names.Waits+" 5000")
	case 1:
		setup = append(setup, "set "+names.Line+" x")
	}
	return setup
}

func restore(t *testing.T, rdb *redis.Client, setup []string) {
	t.Helper()
	ctx := context.Background()
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	for _, line := range setup {
		var args []any
		for _, word := range strings.Fields(line) {
			args = append(args, strings.ReplaceAll(word, "_", " "))
		}
		if err := rdb.Do(ctx, args...).Err(); err != nil {
			t.Fatal(line, err)
		}
	}
}

func dump(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	ctx := context.Background()
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	var text strings.Builder
	for _, key := range keys {
		ttl := rdb.PTTL(ctx, key).Val().Round(500 * time.Millisecond)
		if ttl > time.Hour {
			ttl = ttl.Round(time.Hour) // a token so far ahead of the clock
		}
		fmt.Fprintln(&text, key, ttl, rdb.Get(ctx, key).Val(), rdb.HGetAll(ctx, key).Val(), rdb.ZRange(ctx, key, 0, -1).Val())
	}
	return text.String()
}

// mask hides what depends on the clock: tokens and moments after those of scene, and what is left of a lease there.
func mask(s string) string { return moments.ReplaceAllString(s, "NOW") }

var moments = regexp.MustCompile(`\b1[78]\d{14}|\b1[78]\d{11}\b|\b8[12]\d{11}\b|\b([48]\d{3}|[59]000)\b`)
