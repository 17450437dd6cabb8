package holdfast_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// Claims on three or five masters in random order: commands arrive in any order, twice never, and some of them or of their
// answers never; masters restart. Whatever comes of it, of two claims that were won the ticks are apart by the gap. make soak
// goes on for DURATION.
func TestTickScriptsInRandomOrder(t *testing.T) {
	t.Parallel()
	for seed := range seeds(t, 10) {
		n := 3 + 2*int(seed%2)
		bubbleOf(t, n, func(t *testing.T, ms masters) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			const ahead, behind = 10_000_000, 3600_000_000
			gap := []int64{0, 3}[rnd.IntN(2)]
			base := time.Now().UnixMicro() + 5_000_000
			rdb := make([]func(s holdfast.Script, args ...any) any, n)
			for i, m := range ms {
				client := m.Client()
				rdb[i] = func(s holdfast.Script, args ...any) any {
					val, err := s.Run(background, client, args...)
					for try := 0; err != nil && try < 3; try++ { // the connection of an earlier run; nothing was sent
						val, err = s.Run(background, client, args...)
					}
					must(t, err)
					return val
				}
			}
			type claim struct {
				id    string
				tick  int64
				votes int
				over  bool
			}
			var claims []*claim
			var sent []func() // under way
			var won []*claim
			const mark = "{n}:~mark"
			for step := range 400 {
				switch k := rnd.IntN(20); {
				case k < 2 && len(claims) < 40:
					c := &claim{id: fmt.Sprintf("c%d", len(claims)), tick: base + rnd.Int64N(8)}
					claims = append(claims, c)
					for i := range n {
						sent = append(sent, func() {
							lost := rnd.IntN(8) == 0
							plan := fmt.Sprintf("%d %d %d %d 1", c.tick, ahead, int64(behind), gap)
							r := rdb[i](holdfast.TickScript, mark, "{n}:~gone:"+c.id, c.id, plan).([]any)
							if r[0] == int64(1) && !lost && !c.over {
								if c.votes++; c.votes > n/2 {
									c.over, won = true, append(won, c)
								}
							}
						})
					}
				case k < 4 && len(claims) > 0: // gives up
					c := claims[rnd.IntN(len(claims))]
					if c.over {
						break
					}
					c.over = true
					for i := range n {
						sent = append(sent, func() {
							rdb[i](holdfast.WithdrawScript, mark, "{n}:~gone:"+c.id, c.id, 60_000)
						})
					}
				case k == 4 && rnd.IntN(10) == 0:
					ms[rnd.IntN(n)].Restart()
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				case len(sent) > 0:
					i := rnd.IntN(len(sent))
					deliver := sent[i]
					sent = append(sent[:i], sent[i+1:]...)
					if rnd.IntN(15) != 0 {
						deliver()
					}
				}
				for i, c := range won {
					for _, d := range won[:i] {
						apart := max(c.tick-d.tick, d.tick-c.tick)
						if apart < max(gap, 1) {
							t.Fatalf("seed %d, step %d: %s won %d and %s won %d", seed, step, d.id, d.tick-base, c.id, c.tick-base)
						}
					}
				}
			}
		})
	}
}
