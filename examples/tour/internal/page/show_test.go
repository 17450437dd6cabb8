package page

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// pausedUntilOthersWrote pauses a replica and returns when, of all that it held then, others have the lock and have told
// the database so. It returns the tokens.
func (v *viewer) pausedUntilOthersWrote(replica string) map[int64]bool {
	v.t.Helper()
	v.until(replica+" runs", func([]entry) bool { return v.lane(replica).State == "running" })
	v.post("replicas/" + replica + "/pause")
	v.until(replica+" is paused", func([]entry) bool { return v.lane(replica).State == "paused" })
	held, tokens := map[string]int64{}, map[int64]bool{}
	for _, r := range v.lane(replica).Rows {
		if r.Token != 0 {
			held[r.Product], tokens[r.Token] = r.Token, true
		}
	}
	if len(held) == 0 {
		v.t.Fatal("it was paused with no lock in its hand")
	}
	since := v.until("the locks have passed on", func([]entry) bool {
		for p, token := range held {
			if v.product(p).Fence <= token {
				return false
			}
		}
		return true
	})
	if v.lane(replica).State != "paused" || has(since, replica, "sold") || has(since, replica, "refused") {
		v.t.Errorf("%s works while it is paused: %v", replica, since)
	}
	return tokens
}

func TestPausedReplicaOfThePageIsRefused(t *testing.T) {
	t.Parallel()
	for name, soft := range map[string]bool{"by SIGSTOP": false, "by itself": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !shop.CanStop && !soft {
				t.Skip("no SIGSTOP here")
			}
			l := quick
			l.soft = soft
			v := startShow(t, l, "", 1, 2).view()
			v.until("one leads", func([]entry) bool { return len(v.picture.Terms) > 0 })
			first := v.term()
			paused := first.Name
			tokens := v.pausedUntilOthersWrote(paused)
			v.until("the other one leads", func([]entry) bool { return v.term().Name != paused && v.lock(outbox).Token == v.term().Token })
			// On a busy machine its lease may have been over before.
			if before := v.picture.Terms[0]; before.Token == first.Token && before.Ended != "was paused" || v.term().Token <= before.Token {
				t.Errorf("%+v leads after %+v", v.term(), before)
			}
			v.post("replicas/" + paused + "/resume")
			since := v.until("its write was refused", func(since []entry) bool { return has(since, paused, "refused") })
			for _, e := range since {
				if e.Replica == paused && e.What == "sold" && tokens[e.Token] {
					t.Errorf("it sold under a lock that had passed on: %+v", e)
				}
				if e.What == "refused" && e.Replica == paused && (!tokens[e.Token] || e.Current <= e.Token) {
					t.Errorf("got %+v, want one of %v, and a larger one", e, tokens)
				}
			}
			v.until("it sells again", func(since []entry) bool { return has(since, paused, "sold") && v.picture.Refused > 0 })
			v.until("it waits to lead", func([]entry) bool { return v.hand(paused, outbox).Phase == "waiting" })
			v.stop()
		})
	}
}

// Nothing runs beside it, so that the goroutines can be counted.
func TestKilledReplicaOfThePageComesBack(t *testing.T) {
	before := len(ours())
	s := startShow(t, quick, "", 2, 2)
	v := s.view()
	v.until("both work", func(since []entry) bool { return has(since, "replica-1", "sold") && has(since, "replica-2", "sold") })
	old := v.lane("replica-2").Pid
	v.post("replicas/replica-2/kill")
	v.until("it was killed", func(since []entry) bool { return has(since, "replica-2", "killed") })
	v.until("it is back", func(since []entry) bool { return has(since, "replica-2", "sold") })
	if l := v.lane("replica-2"); l.Pid == old || l.State != "running" {
		t.Errorf("got %+v after process %d was killed", l, old)
	}
	if shop.CanStop { // and Ctrl-C finds a process that cannot end itself
		v.post("replicas/replica-1/pause")
		v.until("it is paused", func([]entry) bool { return v.lane("replica-1").State == "paused" })
	}
	v.stop()
	for began := time.Now(); len(ours()) > before; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patient {
			t.Fatalf("goroutines are left:\n%s", strings.Join(ours(), "\n\n"))
		}
	}
}

// ours returns the goroutines that the page, its replicas and its server run.
func ours() []string {
	buf := make([]byte, 1<<20)
	var left []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, part := range []string{
			"page.(*member)", "page.(*fleet)", "page.(*board)", "page.(*watch)", "page.show", "page.newWatch",
			"shop.(*", "holdfast/core.", "http.(*Server)", "http.(*conn)",
		} {
			if strings.Contains(g, part) {
				left = append(left, g)
				break
			}
		}
	}
	return left
}

// While payments and leases take as long as they do here, nobody else gets a lock: only one that Redis has forgotten.
func TestFlushLetsAnotherHolderIn(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (addr string, check func()){
		"embedded": func(*testing.T) (string, func()) { return "", func() {} },
		"real": func(t *testing.T) (string, func()) {
			server := servertest.Redis(t)
			other := server.Client()
			if err := other.Set(t.Context(), "another program's", "data", 0).Err(); err != nil {
				t.Fatal(err)
			}
			return server.Addr(), func() {
				if n, err := other.Exists(t.Context(), "another program's").Result(); n != 1 {
					t.Errorf("the data of another program is gone (%v)", err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := live{lease: time.Hour, payment: time.Hour, think: 10 * time.Millisecond, comeBack: time.Second, look: 200 * time.Millisecond}
			addr, check := start(t)
			v := startShow(t, slow, addr, 1, 2).view()
			var first row
			v.until("one holds the lock, and one waits", func([]entry) bool {
				waits := false
				for _, l := range v.picture.Lanes {
					waits = waits || l.Rows[0].Phase == "waiting"
					if l.Rows[0].Phase == "held" {
						first = l.Rows[0]
					}
				}
				return waits && first.Token != 0
			})
			v.post("redis/flush")
			var next entry // not of the leader, who may get its lock now
			since := v.until("the other one holds it too", func(since []entry) bool {
				i := slices.IndexFunc(since, func(e entry) bool { return e.What == "acquired" && e.Product == first.Product })
				if i >= 0 {
					next = since[i]
				}
				return i >= 0
			})
			if !has(since, "", "flushed") || next.Token <= first.Token {
				t.Errorf("got %+v after token %d, in %v", next, first.Token, since)
			}
			check()
			// Before the other one has written anything: its payment takes an hour.
			v.until("the database knows", func([]entry) bool { return v.product("lamp").Fence > first.Token })
			v.stop()
		})
	}
}
