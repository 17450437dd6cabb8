package timing

import (
	"container/heap"
	"time"
)

// An Agenda has what is to be done and when, and one timer that fires when the first of it is due. Its user guards it by a
// mutex, which must be held in all its methods.
type Agenda[T Dated] struct {
	all   dates[T]
	fire  func()
	timer *time.Timer
	armed time.Duration // when the timer fires; Forever if it does not
}

// Dated is what can be in an agenda: a pointer to something that embeds a Date.
type Dated interface{ date() *Date }

// A Date is what an agenda needs to know of a thing. The zero Date is in no agenda.
type Date struct {
	When  time.Duration // by the monotonic clock
	place int32         // in the heap, from 1 on; 0 outside
}

func (d *Date) date() *Date { return d }

// Listed reports whether d is in an agenda.
func (d *Date) Listed() bool { return d.place > 0 }

// Start makes a the agenda whose timer calls fire, on a goroutine of its own. fire calls Due first.
func (a *Agenda[T]) Start(fire func()) { a.fire, a.armed = fire, Forever }

// Add lists x, which is not listed.
func (a *Agenda[T]) Add(x T) { heap.Push(&a.all, x) }

// Moved notes that When of x has changed.
func (a *Agenda[T]) Moved(x T) { heap.Fix(&a.all, int(x.date().place)-1) }

// Remove takes out x, which is listed.
func (a *Agenda[T]) Remove(x T) { heap.Remove(&a.all, int(x.date().place)-1) }

// Len returns how many there are.
func (a *Agenda[T]) Len() int { return len(a.all) }

// First returns what is due first. There must be something.
func (a *Agenda[T]) First() T { return a.all[0] }

// All returns everything that is listed, in no order. It is not to be changed, but any When of it may be, if Sort follows.
func (a *Agenda[T]) All() []T { return a.all }

// Sort notes that any When may have changed.
func (a *Agenda[T]) Sort() { heap.Init(&a.all) }

// Due notes that the timer has fired.
func (a *Agenda[T]) Due() { a.armed = Forever }

// Arm makes the timer fire when the first is due. A timer that is set too early stays: it finds nothing due and is set
// again. So what comes and goes quickly costs no timer operation.
func (a *Agenda[T]) Arm(now time.Duration) {
	if len(a.all) == 0 || a.all[0].date().When >= a.armed {
		return
	}
	a.armed = a.all[0].date().When
	if d := max(0, a.armed-now); a.timer == nil {
		a.timer = time.AfterFunc(d, a.fire)
	} else {
		a.timer.Reset(d)
	}
}

// Stop stops the timer.
func (a *Agenda[T]) Stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// Stall makes the timer fire after d and no earlier, as a runtime that starves does; for tests.
func (a *Agenda[T]) Stall(d time.Duration) {
	if a.timer != nil && len(a.all) > 0 {
		a.timer.Reset(d)
	}
}

// dates is a container/heap by When.
type dates[T Dated] []T

func (q dates[T]) Len() int           { return len(q) }
func (q dates[T]) Less(i, j int) bool { return q[i].date().When < q[j].date().When }
func (q dates[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].date().place, q[j].date().place = int32(i+1), int32(j+1)
}

func (q *dates[T]) Push(x any) {
	d := x.(T)
	*q = append(*q, d)
	d.date().place = int32(len(*q))
}

func (q *dates[T]) Pop() any {
	old := *q
	last := len(old) - 1
	d := old[last]
	var none T
	old[last], *q = none, old[:last]
	d.date().place = 0
	return d
}
