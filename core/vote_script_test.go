package holdfast_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestVoteScript(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		x, now := newBooth(t, b), time.Now().UnixMicro()
		vote := func(what, owner string, token, wantCode, wantN int64) {
			t.Helper()
			code, n := x.vote(owner, token)
			x.want(what, code, n, wantCode, wantN)
		}
		vote("too old", "a", now-2_000_000, -3, now-2_000_000)
		for _, fresh := range []int64{0, 5} {
			code, n := x.propose("a", now-fresh, fresh)
			x.want("not larger than its clock when the client began to ask, and it knows of no token", code, n, -3, now-fresh)
		}
		vote("too far ahead", "a", now+2_000_001, -4, 0)
		vote("free", "a", now, 1, now)
		vote("sent again", "a", now, 1, now)
		vote("held elsewhere", "b", now+1, 0, now)
		vote("raised", "a", now+5, 1, now+5)
		vote("a lower one, late", "a", now+3, 1, now+5)
		if n := x.forget("a", now+5, 0); n != 1 {
			t.Errorf("release: got %d, want 1", n)
		}
		if n := x.forget("a", now+5, 0); n != 2 {
			t.Errorf("released again: got %d, want 2", n)
		}
		vote("not larger", "b", now+5, -3, now+5)
		code, n := x.propose("b", now+6, 0)
		x.want("larger", code, n, 1, now+6)
		if n := x.forget("b", 0, 60000); n != 1 {
			t.Errorf("undone with a tombstone: got %d, want 1", n)
		}
		vote("after its own clean-up", "b", now+7, -1, now+6)
		vote("too large", "c", 1<<53, -4, now+6)

		x.b.Restart()
		vote("after a restart", "c", now+8, -5, 31_000)
		time.Sleep(30 * time.Second)
		vote("a second early, as the age may be", "c", now+8, -5, 1_000)
		time.Sleep(time.Second)
		vote("what it may have granted before", "c", now+8, -3, time.Now().UnixMicro()-2_000_000)
		vote("old enough", "c", time.Now().UnixMicro(), 1, time.Now().UnixMicro())
		x.forget("c", 0, 0)
		time.Sleep(time.Second)
		old := time.Now().UnixMicro() - 1_000
		code, n = x.propose("d", old, 0)
		x.want("behind its clock, where it knows the last one", code, n, 1, old)
	})
}

func TestSustainScript(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		x, now := newBooth(t, b), time.Now().UnixMicro()
		want := func(what string, got, want int64) {
			t.Helper()
			if got != want {
				t.Errorf("%s: got %d, want %d", what, got, want)
			}
		}
		want("asked for what is not there", x.sustain("a", 0, now), 0)
		x.vote("a", now)
		want("lengthened", x.sustain("a", 20_000, now), 20_000)
		want("not shortened", x.sustain("a", 5_000, now), 20_000)
		want("asked", x.sustain("a", 0, now), 20_000)
		want("another's", x.sustain("b", 20_000, now+1), 0)
		x.b.Restart()
		want("brought back in quarantine", x.sustain("a", 10_000, now), 10_000)
		code, n := x.vote("b", now+1)
		x.want("and kept from others", code, n, 0, now)
		want("released", x.forget("a", now, 60_000), 1)
		want("a late one after the release", x.sustain("a", 10_000, now), 0)
		x.b.Uptime(time.Hour)
		x.vote("c", now+1)
		x.forget("c", now+1, 0)
		want("where a rival's attempt left a later token", x.sustain("d", 10_000, now), 10_000)
		x.forget("d", now, 0)
		code, n = x.vote("e", now+1)
		x.want("the later token stays", code, n, -3, now+1)
	})
}

// The first in line is told of a release, and the lock is kept for it for a moment.
func TestNudgeScript(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		x, now := newBooth(t, b), time.Now().UnixMicro()
		sub := b.Client().Subscribe(background, "box")
		defer sub.Close()
		if _, err := sub.Receive(background); err != nil {
			t.Fatal(err)
		}
		place := func(id string) string { return id + " 5000 50 1 box" }
		x.vote("a", now)
		x.vote("b", now+1, place("~b"))
		x.vote("c", now+1, place("~c"))
		x.vote("b", now+1, place("~b")) // looks again, and keeps its place
		if got, _ := b.Redis.ZMembers(x.n[3]); !slices.Equal(got, []string{"~b", "~c"}) {
			t.Errorf("line: %v", got)
		}
		x.forget("a", now, 0)
		msg, err := sub.ReceiveMessage(background)
		if err != nil || msg.Payload != fmt.Sprintf("~b\n0\n%d\nk", now) {
			t.Errorf("message: %v, %v", msg, err)
		}
		code, _ := x.vote("c", now+10, place("~c"))
		if code != 0 {
			t.Errorf("the next in line, too early: got %d, want 0", code)
		}
		if code, _ = x.vote("d", now+10); code != 0 {
			t.Errorf("somebody else: got %d, want 0", code)
		}
		if code, _ = x.vote("b", now+10, place("~b")); code != 1 {
			t.Errorf("the first in line: got %d, want 1", code)
		}
		x.forget("b", now+10, 0)
		time.Sleep(50 * time.Millisecond) // ~c does not come
		if code, _ = x.vote("d", time.Now().UnixMicro()); code != 1 {
			t.Errorf("somebody else, later: got %d, want 1", code)
		}
		x.forget("d", 0, 0)
		time.Sleep(2 * time.Minute)
		if keys := b.Redis.Keys(); len(keys) != 0 {
			t.Errorf("left: %v", keys)
		}
	})
}

// booth runs the scripts of one master by hand.
type booth struct {
	t *testing.T
	b *servertest.Bubble
	n []string // the keys
}

func newBooth(t *testing.T, b *servertest.Bubble) *booth {
	n, err := holdfast.NameKeys("k")
	if err != nil {
		t.Fatal(err)
	}
	return &booth{t, b, n}
}

func (x *booth) run(s holdfast.Script, args ...any) []any {
	x.t.Helper()
	val, err := s.Run(background, x.b.Client(), args...)
	if err != nil {
		x.t.Fatal(err)
	}
	if r, ok := val.([]any); ok {
		return r
	}
	return []any{val}
}

// vote proposes a token for owner, a lease of 10 s and one token, with a quarantine of 30 s and bounds of 2 s, after
// asking for as long.
func (x *booth) vote(owner string, token int64, place ...any) (code, n int64) {
	x.t.Helper()
	return x.propose(owner, token, 2_000_000, place...)
}

// propose is vote after asking for some µs.
func (x *booth) propose(owner string, token, fresh int64, place ...any) (code, n int64) {
	x.t.Helper()
	plan := fmt.Sprint(token, " 10000 70000 1 30000 2000000 ", fresh, " 2000000 1")
	if len(place) > 0 {
		plan += " " + fmt.Sprint(place...)
	}
	r := x.run(holdfast.VoteScript, x.n[0], x.n[1], x.gone(owner), x.n[3], x.n[4], owner, plan)
	if len(r) < 4 || r[1] != time.Now().UnixMicro() || r[2] != x.b.RunID() {
		x.t.Errorf("vote: got %v, want TIME and the id of the run", r)
	}
	return r[0].(int64), r[3].(int64)
}

func (x *booth) gone(owner string) string { return strings.Replace(x.n[2], "owner", owner, 1) }

func (x *booth) forget(owner string, token int64, tombstone int) int64 {
	x.t.Helper()
	return x.run(holdfast.YieldScript, x.n[0], x.n[1], x.gone(owner), x.n[3], x.n[4], owner, token, 60000, tombstone, "")[0].(int64)
}

func (x *booth) sustain(owner string, lease, token int64) int64 {
	x.t.Helper()
	return x.run(holdfast.SustainScript, x.n[0], x.n[1], x.gone(owner), owner, fmt.Sprint(lease, " ", token, " 1 70000"))[0].(int64)
}

func (x *booth) want(what string, code, n, wantCode, wantN int64) {
	x.t.Helper()
	if code != wantCode || n != wantN {
		x.t.Errorf("%s: got %d, %d, want %d, %d", what, code, n, wantCode, wantN)
	}
}
