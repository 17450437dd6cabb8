package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// What stands in front of a script for its common case does what the script behind it does by itself, in whatever state it
// finds a lock: every reply, every key and every time to live.
func TestFastPathsDoWhatIsBehindThem(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		m := miniredis.RunT(t)
		m.SetTime(time.UnixMicro(1_700_000_000_000_001)) // whose tokens have a 0 in the middle
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer rdb.Close()
		testFast(t, rdb, rounds(1000), func(s string) string { return s })
	})
	t.Run("redis", func(t *testing.T) { testFast(t, servertest.Redis(t).Client(), rounds(2000), mask) })
}

func testFast(t *testing.T, rdb *redis.Client, rounds int, mask func(string) string) {
	slow := func(s *Script, fast string) *Script {
		text := strings.Replace(s.Text(), bare(fast), "local found\n", 1)
		if text == s.Text() {
			t.Fatal("the script does not have what is to be left out")
		}
		return newScript(s.keys, text)
	}
	behind := map[*Script]*Script{
		AcquireScript: slow(AcquireScript, fastLua), ForgetScript: slow(ForgetScript, fastForgetLua),
		YieldScript: slow(YieldScript, fastForgetLua), VoteScript: slow(VoteScript, fastVoteLua),
	}
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(2, uint64(round)))
		pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
		checked, err := CheckKey("k")
		if err != nil {
			t.Fatal(err)
		}
		names := checked.names("owner", "", "")
		setup := state(rnd, names)
		if rnd.IntN(6) == 0 {
			setup = append(setup, "set "+names.Gone+" 1 px 60000")
		}
		if rnd.IntN(4) == 0 {
			setup = append(setup, pick("hset "+names.Waits+" next "+pick("other", "~w")+"_"+pick("1", "9999999999999"), "set "+names.Waits+" x"))
		}
		var c item
		owner, token := "owner", []int64{1600000000000000, 1600000000000000, 0}[rnd.IntN(3)]
		now := rdb.Time(t.Context()).Val().UnixMicro()
		switch rnd.IntN(4) {
		case 0:
			var waits *Waiting
			if rnd.IntN(2) == 0 {
				waits = &Waiting{First: 5 * time.Second}
			}
			plan := AcquirePlan(15*time.Second, 1+rnd.IntN(5)/4, waits)
			c.script, c.args = Acquire(nil, &names, &owner, &plan)
		case 1:
			c.script, c.args = Forget(nil, &names, &owner, &token, rnd.IntN(4) == 0)
		case 2:
			c.script, c.args = Yield(nil, &names, &owner, &token, rnd.IntN(4) == 0, pick("", "-", "~w"))
		case 3:
			p := Proposal{
				Token: now + []int64{5e5, 5e5, -5e5, -3e7, 2e9, -2e9}[rnd.IntN(6)], Lease: 15 * time.Second, Block: 1 + rnd.IntN(5)/4,
				Behind: time.Second, Passed: time.Duration(rnd.IntN(2)) * time.Minute, Ahead: time.Duration(1+3599*rnd.IntN(2)) * time.Second, Started: rnd.IntN(2) == 0,
			}
			if rnd.IntN(2) == 0 {
				p.Started, p.Quarantine = true, time.Duration(rnd.IntN(2)+1)*time.Millisecond
			}
			if rnd.IntN(2) == 0 {
				p.Place = VotePlace("~w", time.Second, "inbox")
			}
			plan := p.Plan()
			c.script, c.args = Vote(nil, &names, &names.Gone, &owner, &plan)
		}
		if marks := c.script == AcquireScript || c.script == ForgetScript; marks && !strings.Contains(strings.Join(setup, " "), "_w") {
			// One Redis: a fence without the mark says that nobody waits, which internal/model proves.
			setup = slices.DeleteFunc(setup, func(line string) bool { return strings.Contains(line, names.Line) })
		}
		got, want := "", ""
		for try := 0; try == 0 || got != want && try < 3; try++ { // the server may get a second older between the two
			for _, way := range []struct {
				script *Script
				text   *string
			}{{c.script, &got}, {behind[c.script], &want}} {
				restore(t, rdb, setup)
				args := append([]any{"evalsha", way.script.sha}, c.args[2:]...)
				*way.text = mask(item{way.script, args}.run(rdb) + "\n" + dump(t, rdb))
			}
		}
		if got != want {
			t.Fatalf("round %d, %s: with the fast path\n%s\nwithout\n%s\nof %s", round, ScriptName([]string{"", c.script.sha.(string)}), got, want, strings.Join(setup, "\n"))
		}
	}
}

func state(rnd *rand.Rand, names Names) []string {
	const last = "1600000000000000"
	switch rnd.IntN(4) {
	case 0:
		return []string{"set " + names.Lock + " owner px 9000", fmt.Sprint("set ", names.Fence, " ", last, "_", last, "_1 px 70000")}
	case 1:
		return []string{fmt.Sprint("set ", names.Fence, " ", []string{last, last, "0"}[rnd.IntN(3)], "_0_1 px 70000")}
	}
	return oddities(rnd, names, []string{"0", "7", last, "1699999999999999", "9007199254740990", "99999999999999999"}, "owner", "other")
}
