package holdfast_test

import (
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// serve takes a new lock into account, and looks whether it may be one.
func (w *world) serve(id int, key string, lock *holdfast.Lock, asked time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("call %d: has %q with token %d", id, key, lock.Token())
	w.Served++
	h := w.locks[key]
	if lock.Token() <= h.last {
		if w.jumped(asked) {
			w.Excused++ // it was granted before the other, and let go of early
		} else {
			w.fail("token %d after %d for %q", lock.Token(), h.last, key)
		}
	}
	h.last = max(h.last, lock.Token())
	h.live = append(h.live, &owned{Lock: lock, asked: asked})
	w.exclusive(key, h)
	w.grownUp(lock, asked)
	if fn := w.onGrant; fn != nil {
		w.onGrant = nil
		fn()
	}
}

// end takes it out.
func (w *world) end(key string, lock *holdfast.Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if lock.Err() != nil {
		w.Lost++
	}
	h := w.locks[key]
	for i, o := range h.live {
		if o.Lock == lock {
			h.live = append(h.live[:i], h.live[i+1:]...)
			h.past = append(h.past, o)
			return
		}
	}
}

// exclusive fails if two count as holding one key: by what they know, and when asked, which may ask Redis.
func (w *world) exclusive(key string, h *history) {
	if len(h.live) < 2 {
		return // to ask would end a lease that is over, and hide a renewal that revives it
	}
	var first *owned
	for _, o := range h.live {
		if holdfast.Left(o.Lock) == 0 || o.Err() != nil {
			continue
		}
		if first == nil {
			first = o
			continue
		}
		if w.jumped(first.asked) {
			w.Excused++ // no client can know that a key expired early, see redlock/README.md
			continue
		}
		w.fail("two hold %q, with tokens %d and %d", key, first.Token(), o.Token())
	}
}

// revived fails if a lock that was over is not any more.
func (w *world) revived(o *owned) {
	if left := holdfast.Left(o.Lock); left == 0 {
		o.over = true
	} else if o.over {
		w.fail("the lock with token %d was over, and is held again for %v", o.Token(), left)
	}
}

// jumped tells whether a clock was set forward since then.
func (w *world) jumped(since time.Time) bool {
	for _, at := range w.jumps {
		if !at.Before(since) {
			return true
		}
	}
	return false
}

// grownUp fails if a lock rests on masters of which too few voted, as far as can be seen: from when it was asked for until
// now most of them were in their quarantine.
func (w *world) grownUp(lock *holdfast.Lock, asked time.Time) {
	if w.quarantine == 0 {
		return
	}
	young := 0
	for _, n := range w.nodes {
		if !n.started.IsZero() && !n.started.After(asked) && time.Since(n.started) < w.quarantine-n.forward {
			young++
		}
	}
	if young > len(w.nodes)/2 {
		w.fail("token %d was granted by masters in quarantine: %d are", lock.Token(), young)
	}
}

// watch looks all the time, and lets clocks run at their own rates.
func (w *world) watch(over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(8 * time.Millisecond):
		}
		w.mu.Lock()
		for key, h := range w.locks {
			for _, o := range h.live {
				w.revived(o)
			}
			for _, o := range h.past {
				w.revived(o)
			}
			w.exclusive(key, h)
		}
		for i, n := range w.nodes {
			if n.rate != 0 {
				n.set(w.ms[i])
			}
		}
		w.mu.Unlock()
	}
}

func short(err error) string {
	if err == nil {
		return "ok"
	}
	s := err.Error()
	return s[:min(len(s), 160)]
}
