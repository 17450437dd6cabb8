package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// hold is one acquisition and the release after it, in ns by now.
type hold struct {
	Asked    int64 `json:"q"` // before the acquire
	Acquired int64 `json:"a"` // after it
	Released int64 `json:"r"` // before the release
}

// diary is what one goroutine of a crowd went through.
type diary struct {
	Locker   int // the goroutines of one Locker, or of one process, have the same
	Holds    []hold
	Waiting  int64 // when the wait began that the end of the crowd cut short; 0 for none
	Failures int   // acquires that gave up, and releases that failed
	Reason   string
	Clashes  int // how often somebody else was in the section too
}

func (d *diary) failed(err error) {
	d.Failures++
	d.Reason = err.Error()
	time.Sleep(time.Millisecond) // so that a rival that fails at once does not spin
}

// section is what the lock guards. Nothing else does: without the lock it is a data race.
type section struct {
	inside  int // a goroutine, from 1; 0 for nobody
	entered int
}

func (s *section) enter(me int) (alone bool) {
	alone = s.inside == 0
	s.inside = me
	s.entered++
	return alone
}

func (s *section) leave(me int) (alone bool) {
	alone = s.inside == me
	s.inside = 0
	return alone
}

// hot is the key that all contend for.
const hot = "bench:hot"

// crowd is goroutines that all want the same lock, over and over or once each.
type crowd struct {
	waiters []waiter // in turns
	once    bool
	section section
	diaries []diary
	wg      sync.WaitGroup
}

func newCrowd(waiters []waiter, s setting) *crowd {
	c := &crowd{waiters: waiters, once: s.once, diaries: make([]diary, s.goroutines)}
	for i := range c.diaries {
		c.diaries[i].Locker = i % len(waiters)
	}
	return c
}

// gather lets the goroutines loose until ctx ends.
func (c *crowd) gather(ctx context.Context) {
	for i := range c.diaries {
		c.wg.Go(func() { c.join(ctx, i+1, &c.diaries[i]) })
	}
}

func (c *crowd) join(ctx context.Context, me int, d *diary) {
	w, always := c.waiters[d.Locker], context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		asked := now()
		lock, err := w.acquire(ctx, hot)
		acquired := now()
		if err != nil {
			if ctx.Err() == nil {
				d.failed(err)
				continue
			}
			d.Waiting = asked
			return
		}
		first := c.section.enter(me)
		released := now()
		if last := c.section.leave(me); !first || !last {
			d.Clashes++
		}
		if err := lock.Release(always); err != nil {
			d.failed(err)
		}
		d.Holds = append(d.Holds, hold{asked, acquired, released})
		if c.once {
			return
		}
	}
}

// wait waits until all goroutines are back.
func (c *crowd) wait(patience time.Duration) error {
	back := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(back)
	}()
	select {
	case <-back:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("after %v some still wait for the lock, or to release it", patience)
	}
}

// lost returns how many entries into the section another one overwrote.
func (c *crowd) lost() int {
	n := -c.section.entered
	for _, d := range c.diaries {
		n += len(d.Holds)
	}
	return n
}
