package core_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Random histories: every earlier tenure is asked about after every step, and the fence is right about each, or
// says after more losses than it keeps that it does not know.
func TestFenceTellsHowEachTenureEnded(t *testing.T) {
	t.Parallel()
	for seed := range seeds(t, 2) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			rdb := b.Client()
			type tenure struct {
				owner    string
				token    int64
				released bool
				losses   int // up to then
			}
			var all []*tenure
			losses := 0
			loss := rnd.Float64() / 2
			last := int64(0)
			run := func(s core.Script, args ...any) any {
				v, err := s.Run(background, rdb, args...)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			for i := range 40 {
				tn := &tenure{owner: fmt.Sprint("o", i)}
				args := []any{"k", fenceKey, "{k}:~gone:" + tn.owner, lineKey, waitKey, tn.owner, "1000 60000 1"}
				tn.token, _ = run(core.AcquireScript, args...).(int64)
				if tn.token <= last {
					t.Fatalf("token %d after %d", tn.token, last)
				}
				last = tn.token
				if again := run(core.AcquireScript, args...); again != tn.token {
					t.Fatalf("resent acquire: %v", again)
				}
				switch {
				case rnd.Float64() < loss: // lost
					b.Redis.Del("k")
					losses++
				default:
					if v := run(core.ForgetScript, "k", fenceKey, "{k}:~gone:"+tn.owner, lineKey, waitKey, tn.owner, tn.token, 60000, 0); v != int64(1) {
						t.Fatal(v)
					}
					tn.released = true
				}
				if rnd.IntN(4) == 0 {
					b.Skew(time.Duration(rnd.IntN(2000)-1000) * time.Millisecond)
				}
				tn.losses = losses
				all = append(all, tn)
				for _, o := range all {
					v := run(core.ForgetScript, "k", fenceKey, "{k}:~gone:"+o.owner, lineKey, waitKey, o.owner, o.token, 60000, 0).(int64)
					since := losses - o.losses
					ok := v == 3 && since >= 8 || o.released && v == 2 || !o.released && v == 0
					if !ok {
						t.Fatalf("seed %d: released=%v, %d losses since: %d", seed, o.released, since, v)
					}
					if v == 3 && since < 9 && o.released {
						t.Fatalf("released, unknown after %d losses", since)
					}
				}
			}
		})
	}
}
