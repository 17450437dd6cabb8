package core_test

import (
	"context"
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
	opts := []core.CallOption{core.WithTTL(ttl)}
	how := w.rnd.IntN(4)
	if how == 0 {
		opts = append(opts, core.WithoutRenewal())
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
			core.StallTimer(holder.Locker, time.Minute)
			time.AfterFunc(core.Left(lock)+heal, func() {
				w.note("process 0 hears them again")
				each(links, (*servertest.Link).Heal)
			})
		}
	})
	w.all.Go(func() {
		for { // it renews for a while
			left := core.Left(lock)
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
			next, err := rival.TryAcquire(ctx, "k", core.WithTTL(ttl))
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

func each(links []*servertest.Link, do func(*servertest.Link)) {
	for _, l := range links {
		do(l)
	}
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
			core.SkewWall(v.Locker, d)
		}
		cut := w.some(pick(w, 0, 1, 2, 2, 4))
		w.note("process %d cannot reach nodes %v", p, cut)
		for _, k := range cut {
			v.links[k].CutUp()
		}
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
		each(v.links, (*servertest.Link).Heal)
		time.Sleep(w.millis(10))
	}
}
