package holdfast_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What rarely comes about by itself has plots of its own.

// lapse is the end of a lease: one process stops to renew, by intention or as it is cut off, and holds on; its commands
// or the answers may take long, and the clocks of the masters may run fast. Another one asks until it gets the lock.
func (w *world) lapse() {
	holder, rival := w.vs[0], w.vs[1]
	ttl := pick(w, 200*time.Millisecond, time.Second)
	up, down := w.millis(4), w.millis(4)
	switch slow := w.millis(int(ttl/20/time.Millisecond) * 3 / 2); w.rnd.IntN(3) { // within the node timeout
	case 0:
		down = min(slow, max(ttl/10, 50*time.Millisecond)-5*time.Millisecond)
	case 1:
		up = min(slow, max(ttl/10, 50*time.Millisecond)-5*time.Millisecond)
	}
	for _, l := range holder.links {
		l.DelayUp(up)
		l.DelayDown(down)
	}
	w.note("process 0: its commands take %v, the answers %v", up, down)
	opts := []holdfast.CallOption{holdfast.WithTTL(ttl)}
	how := w.rnd.IntN(4)
	if how == 0 {
		opts = append(opts, holdfast.WithoutRenewal())
	}
	jump, cut, heal := w.millis(int(ttl/time.Millisecond)), w.millis(int(ttl/time.Millisecond)), w.millis(int(ttl/time.Millisecond)/4)
	fast := w.one(2)
	w.Calls += 2
	ctx, cancel := context.WithTimeout(background, time.Second)
	defer cancel()
	asked := time.Now()
	lock, err := holder.TryAcquire(ctx, "k", opts...)
	if err != nil {
		w.note("process 0: %v", short(err))
		return
	}
	w.serve(0, "k", lock, asked)
	if fast {
		time.AfterFunc(jump, w.slacken)
	}
	links := holder.links
	time.AfterFunc(cut, func() {
		switch how {
		case 1:
			w.note("process 0 cannot reach any node")
			each(links, (*servertest.Link).CutUp)
		case 2:
			w.note("process 0 cannot reach most nodes")
			each(links[:3], (*servertest.Link).CutUp)
		case 3:
			w.note("process 0 cannot hear any node, and does not come to see that its lease ends")
			each(links, (*servertest.Link).CutDown)
			holdfast.StallTimer(holder.Locker, time.Minute)
			time.AfterFunc(holdfast.Left(lock)+heal, func() {
				w.note("process 0 hears them again")
				each(links, (*servertest.Link).Heal)
			})
		}
	})
	w.all.Go(func() {
		for { // it renews for a while
			left := holdfast.Left(lock)
			if left < 80*time.Millisecond {
				break
			}
			time.Sleep(min(left-80*time.Millisecond+time.Millisecond, 20*time.Millisecond))
			if time.Since(asked) > 4*ttl {
				break
			}
		}
		for until := time.Now().Add(180 * time.Millisecond); time.Now().Before(until); time.Sleep(6 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
			asked := time.Now()
			next, err := rival.TryAcquire(ctx, "k", holdfast.WithTTL(ttl))
			cancel()
			if err == nil {
				w.serve(1, "k", next, asked)
				time.Sleep(50 * time.Millisecond)
				w.end("k", next)
				w.note("process 1: released: %v", short(next.Release(background)))
				break
			}
		}
		time.Sleep(heal)
		w.end("k", lock)
		each(links, (*servertest.Link).Heal)
		w.note("process 0: released: %v", short(lock.Release(background)))
	})
	w.all.Wait()
}

// wake is the end of a quarantine: most masters start anew while somebody holds a lock, and others ask until they vote.
func (w *world) wake() {
	w.Calls++
	w.Restarts++
	if lock, asked, err := w.try(0, w.one(2)); err == nil {
		w.serve(0, "k", lock, asked)
		hold := w.millis(800)
		w.all.Go(func() {
			w.sleep(lock, hold)
			w.end("k", lock)
			w.note("call 0: released: %v", short(lock.Release(background)))
		})
	}
	time.Sleep(w.millis(400))
	w.mu.Lock()
	for _, i := range w.some(3 + w.rnd.IntN(3)) {
		w.restart(i, "")
	}
	w.mu.Unlock()
	for _, d := range []time.Duration{0, w.quarantine - 1200*time.Millisecond} {
		time.Sleep(d)
		for i := range 12 {
			p := w.rnd.IntN(len(w.vs))
			lock, asked, err := w.try(p, false)
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			w.serve(i, "k", lock, asked)
			w.end("k", lock)
			w.note("call %d: released: %v", i, short(lock.Release(background)))
			break
		}
	}
}

func (w *world) try(p int, renew bool) (lock *holdfast.Lock, asked time.Time, err error) {
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	asked = time.Now()
	if renew {
		lock, err = w.vs[p].TryAcquire(ctx, "k")
	} else {
		lock, err = w.vs[p].TryAcquire(ctx, "k", holdfast.WithoutRenewal())
	}
	if err != nil {
		w.note("process %d: %v", p, short(err))
	}
	return lock, asked, err
}

// raise is tokens that have to be raised: locks come and go quickly, by processes with clocks that differ, each of which
// reaches some masters only.
func (w *world) raise() {
	for i := range 4 + w.rnd.IntN(4) {
		p := w.rnd.IntN(len(w.vs))
		v := w.vs[p]
		if w.one(2) {
			d := w.millis(3600) - 1800*time.Millisecond
			w.note("the clock of process %d is set by %v", p, d)
			holdfast.SkewWall(v.Locker, d)
		}
		w.obstruct(p, v)
		w.Calls++
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		asked := time.Now()
		lock, err := v.TryAcquire(ctx, "k")
		cancel()
		if err != nil {
			w.note("call %d: %v", i, short(err))
		} else {
			w.serve(i, "k", lock, asked)
			time.Sleep(w.millis(3))
			w.end("k", lock)
			w.note("call %d: released: %v", i, short(lock.Release(background)))
		}
		each(v.links, func(l *servertest.Link) { l.OnCommand(nil) })
		time.Sleep(w.millis(10))
	}
}

// obstruct loses what a process sends to some masters: all of it, or every proposal but the first.
func (w *world) obstruct(p int, v *voter) {
	how := make([]int, len(v.links))
	for i := range how {
		how[i] = pick(w, 0, 0, 1, 2)
	}
	if w.one(4) {
		for i := range how {
			how[i] = 1
		}
		how[w.rnd.IntN(len(how))] = 0
	}
	w.note("process %d reaches %v: 1 not at all, 2 for the first token only", p, how)
	for i, l := range v.links {
		var mu sync.Mutex
		var first string
		l.OnCommand(func(args []string) servertest.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if how[i] == 1 {
				return servertest.LoseRequestAndClose
			}
			if how[i] == 2 && holdfast.ScriptName(args) == "vote" {
				token, _, _ := strings.Cut(args[len(args)-1], " ")
				if first == "" {
					first = token
				}
				if token != first {
					return servertest.LoseRequestAndClose
				}
			}
			return servertest.Pass
		})
	}
}
