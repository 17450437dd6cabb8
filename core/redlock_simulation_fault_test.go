package holdfast_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// nodeState is what the simulation knows of a master.
type nodeState struct {
	began   time.Time
	skew    time.Duration // of its clock
	rate    float64       // of its clock, less 1
	slack   time.Duration // by how much it may still jump forward without anything being allowed to go wrong
	started time.Time     // anew; zero if it never did
	forward time.Duration // by how much its clock was set forward since
	pause   atomic.Int32
}

// set sets the clock of a master as it should be by now.
func (n *nodeState) set(m *servertest.Bubble) {
	m.Skew(n.skew + time.Duration(n.rate*float64(time.Since(n.began))))
}

func (w *world) setUp() {
	w.longest = 2 * time.Second // Extend
	ttls := []time.Duration{200 * time.Millisecond, time.Second}
	if w.one(4) {
		w.longest = 5 * time.Second
		ttls = append(ttls, w.longest)
	}
	w.quarantine = w.longest*101/100 + 5*time.Second + time.Millisecond
	w.locks = map[string]*history{"k": {}, "other": {}}
	time.Sleep(w.millis(1000)) // for the second in which an uptime begins
	drifting, skewed := w.one(3), !w.one(3)
	for range 5 {
		m, n := servertest.NewBubble(w.t), &nodeState{began: time.Now(), slack: 15 * time.Millisecond}
		if skewed {
			n.skew = w.millis(1400) - 700*time.Millisecond
		}
		if drifting {
			n.rate = pick(w, -0.009, -0.002, 0.008, 0.009, 0.009)
		}
		n.set(m)
		w.ms, w.nodes = append(w.ms, m), append(w.nodes, n)
	}
	for i := range pick(w, 2, 2, 2, 3) {
		opts := []holdfast.Option{holdfast.WithTTL(pick(w, ttls...)), redlock.WithQuarantine(w.quarantine)}
		switch w.rnd.IntN(3) {
		case 0:
			opts = append(opts, holdfast.WithLocalHandover(0, 0))
		case 1:
			opts = append(opts, holdfast.WithLocalHandover(2, w.millis(100)))
		}
		if w.seed%3 == 0 {
			opts = append(opts, holdfast.WithReleaseInBackground())
		}
		v := w.ms.voter(w.t, opts...)
		w.vs = append(w.vs, v)
		if d := pick(w, 0, 0, 0, time.Hour, -time.Hour, 1500*time.Millisecond, -1500*time.Millisecond); d != 0 {
			holdfast.SkewWall(v.Locker, d)
			w.note("process %d has a clock that is %v off", i, d)
		}
		base := time.Duration(w.rnd.IntN(4)) * time.Millisecond
		each(v.links, func(l *servertest.Link) { l.Delay(base + time.Duration(w.rnd.IntN(2))*time.Millisecond) })
		if w.verbose {
			w.listen(i, v)
		}
	}
}

// listen notes all commands.
func (w *world) listen(i int, v *voter) {
	for k, l := range v.links {
		l.OnCommand(func(args []string) servertest.Verdict {
			if s := holdfast.ScriptName(args); s != "" {
				w.note("process %d sends to node %d: %s %s", i, k, s, args[len(args)-2:])
			}
			return servertest.Pass
		})
	}
}

// some returns the numbers of k of the masters.
func (w *world) some(k int) []int { return w.rnd.Perm(len(w.ms))[:k] }

func (w *world) restart(i int, why string) {
	w.note("node %d restarts without its data%s", i, why)
	w.nodes[i].started, w.nodes[i].forward = time.Now(), 0
	w.ms[i].Restart()
}

// fault does something to links, to a process, or to masters.
func (w *world) fault() {
	w.Faults++
	p := w.rnd.IntN(len(w.vs))
	v := w.vs[p]
	d := w.millis(1500)
	switch w.rnd.IntN(20) {
	case 0, 1, 2, 3:
		cut := w.some(1 + w.rnd.IntN(5))
		how := w.rnd.IntN(3)
		w.note("process %d cannot %s nodes %v for %v", p, []string{"reach", "hear", "reach or hear"}[how], cut, d)
		for _, i := range cut {
			l := v.links[i]
			if how != 1 {
				l.CutUp()
			}
			if how != 0 {
				l.CutDown()
			}
			time.AfterFunc(d, l.Heal)
		}
	case 4, 5:
		up, down := w.millis(60), w.millis(200)
		slow := w.some(1 + w.rnd.IntN(5))
		w.note("process %d: to nodes %v it takes %v, back %v", p, slow, up, down)
		for _, i := range slow {
			v.links[i].DelayUp(up)
			v.links[i].DelayDown(down)
		}
	case 6:
		w.note("process %d: all connections are reset", p)
		each(v.links, (*servertest.Link).Reset)
	case 7, 8:
		w.flaky(p, v)
	case 9:
		for _, i := range w.some(1 + w.rnd.IntN(3)) {
			w.note("node %d hangs for %v", i, d)
			m, n := w.ms[i], w.nodes[i]
			m.Pause()
			k := n.pause.Add(1)
			time.AfterFunc(d, func() {
				if n.pause.Load() == k { // and not paused once more
					m.Resume()
				}
			})
		}
	case 10, 11:
		w.mu.Lock()
		for _, i := range w.some(pick(w, 1, 1, 2, 2, 3, 5)) {
			w.restart(i, "")
		}
		w.Restarts++
		w.mu.Unlock()
	case 12:
		k := w.some(pick(w, 1, 2, 2, 3, 4))
		w.note("nodes %v will restart after the next grant", k)
		w.Restarts++
		w.mu.Lock()
		w.onGrant = func() {
			for _, i := range k {
				w.restart(i, "")
			}
		}
		w.mu.Unlock()
	case 13:
		for _, i := range w.some(1 + w.rnd.IntN(2)) {
			forget := w.one(2)
			w.Restarts++
			w.note("node %d is down for %v", i, d)
			w.ms[i].Down()
			time.AfterFunc(d, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				if forget {
					w.restart(i, "")
				}
				w.nodes[i].started, w.nodes[i].forward = time.Now(), 0
				w.note("node %d is up", i)
				w.ms[i].Up()
			})
		}
	case 14: // a machine is suspended: its wall clock shows it afterwards
		w.note("process %d is suspended for %v", p, d)
		for _, l := range v.links {
			l.CutUp()
			l.CutDown()
		}
		time.AfterFunc(d, func() {
			holdfast.SkewWall(v.Locker, d)
			each(v.links, (*servertest.Link).Heal)
		})
	case 15:
		d := w.millis(3800) - 1900*time.Millisecond
		w.note("the clock of process %d is set by %v", p, d)
		holdfast.SkewWall(v.Locker, d)
	case 16:
		w.note("process %d does not come to renew for %v", p, d)
		holdfast.StallTimer(v.Locker, d)
	case 17, 18, 19:
		w.clock(p)
	}
	synctest.Wait()
}

// clock sets clocks of masters.
func (w *world) clock(p int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.rnd.IntN(6) {
	case 0, 1:
		for _, i := range w.some(1 + w.rnd.IntN(5)) {
			n := w.nodes[i]
			if d := w.millis(1000); n.skew-d > -time.Second {
				w.note("the clock of node %d is set back by %v", i, d)
				n.skew -= d
				n.set(w.ms[i])
			}
		}
	case 2, 3:
		w.hurry()
	case 4: // a master that starts anew with the right time
		for _, i := range w.some(1 + w.rnd.IntN(2)) {
			n := w.nodes[i]
			d := time.Second - n.skew
			w.Restarts++
			w.restart(i, " and sets its clock forward")
			n.forward += d
			n.skew += d
			n.set(w.ms[i])
		}
	case 5: // then keys expire early, and no client can know
		i := w.rnd.IntN(len(w.nodes))
		n := w.nodes[i]
		d := w.millis(max(1, int((time.Second - n.skew).Milliseconds())))
		w.note("the clock of node %d is set forward by %v, which lets go of locks", i, d)
		w.jumps = append(w.jumps, time.Now())
		n.skew += d
		n.forward += d
		n.set(w.ms[i])
	}
}

// slacken sets all clocks forward by less than what a holder allows for, once.
func (w *world) slacken() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hurry()
}

func (w *world) hurry() {
	w.note("the clocks of all nodes are set forward by %v", w.nodes[0].slack)
	for i, n := range w.nodes {
		n.skew += n.slack
		n.forward += n.slack
		n.slack = 0
		n.set(w.ms[i])
	}
}

// flaky loses one in four commands for a while, or holds them or their answers back, so that they come in another order.
func (w *world) flaky(p int, v *voter) {
	verdict := pick(w, servertest.LoseReply, servertest.LoseReplyAndClose, servertest.LoseRequest, servertest.LoseRequestAndClose)
	hold := pick(w, nil, nil, servertest.HoldRequest, servertest.HoldReply)
	d := w.millis(1000)
	w.note("process %d: commands or replies are lost for %v", p, d)
	rnd := rand.New(rand.NewPCG(w.seed, 99))
	var mu sync.Mutex
	for i, l := range v.links {
		l.OnCommand(func(args []string) servertest.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if rnd.IntN(4) != 0 {
				return servertest.Pass
			}
			if w.verbose {
				w.note("process %d, node %d: lost or late, of %s", p, i, holdfast.ScriptName(args))
			}
			if hold != nil {
				late := make(chan struct{})
				time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Millisecond, func() { close(late) })
				return hold(late)
			}
			return verdict
		})
		l.OnMessage(func(string, string) servertest.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if rnd.IntN(2) == 0 {
				return servertest.LoseReply
			}
			return servertest.Pass
		})
	}
	time.AfterFunc(d, func() {
		for _, l := range v.links {
			l.OnCommand(nil)
			l.OnMessage(nil)
		}
	})
}

// heal ends all faults but those of clocks.
func (w *world) heal() {
	w.note("all is well again")
	for i, m := range w.ms {
		w.nodes[i].pause.Add(1)
		m.Resume()
	}
	for _, v := range w.vs {
		for _, l := range v.links {
			l.Heal()
			l.OnCommand(nil)
			l.OnMessage(nil)
			l.Delay(0)
		}
	}
}
