package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A Record is all that is known of what happened in a world, once it is over.
type Record struct {
	Logs      []*Log
	Registers *Registers
	Forgets   []Span // when a server may have forgotten what nothing protects
	Quorum    bool

	Lease time.Duration // 0 where that is not known

	Steps  []Step        // of all clocks, in order
	Margin time.Duration // how much a clock can be set forward within a lease, and no holder notices
	Unix   Stamp         // the true time at 0

	// Remains is how long a lock may last of which nobody hears any more: a lease, and the time for a server to do what it was
	// sent. 0 where that is not known, as links may keep commands.
	Remains time.Duration
}

// A Log is the journal of one process.
type Log struct {
	Worker  int
	Entries []Entry
	Killed  Stamp // before it was; 0 if it was not
}

// A Span is from the first to the last moment at which something may have happened.
type Span struct{ From, To Stamp }

// op is one call of one process.
type op struct {
	Entry
	worker int
	client int
	id     int    // of a granted acquisition, from 1
	done   *Entry // nil if it never returned
	looks  []Entry
	ended  *op // its release
	killed Stamp
}

func (o *op) out() Outcome {
	if o.done == nil {
		return Unknown
	}
	return o.done.Out
}

// back is when it had returned.
func (o *op) back() Stamp {
	if o.done == nil {
		return Forever
	}
	return o.done.At
}

// calls puts the journals together, in the order in which the calls began.
func (r *Record) calls() []*op {
	var all []*op
	clients := map[[2]int]int{}
	for _, l := range r.Logs {
		byOp := map[int]*op{}
		for i := range l.Entries {
			e := &l.Entries[i]
			if e.Kind == Began {
				who := [2]int{l.Worker, e.Loop}
				if _, ok := clients[who]; !ok {
					clients[who] = len(clients)
				}
				o := &op{Entry: *e, worker: l.Worker, client: clients[who], killed: l.Killed}
				if e.What == Releasing {
					byOp[e.Of].ended = o
				}
				if e.Of != 0 {
					o.Key = byOp[e.Of].Key
				}
				byOp[e.Op] = o
				all = append(all, o)
				continue
			}
			o := byOp[e.Op]
			if e.Kind == Done {
				o.done = e
			} else {
				o.looks = append(o.looks, *e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *op) int { return cmp.Compare(a.At, b.At) })
	granted := 0
	for _, o := range all {
		if o.What.acquires() && o.out() == Granted {
			granted++
			o.id = granted
		}
	}
	return all
}

// end is when the hold of an acquisition ended, for others, and how.
func (r *Record) end(o *op) (from, to Stamp, how string) {
	from, to, how = r.counted(o)
	for _, f := range r.Forgets {
		if o.At <= f.To && to >= f.From {
			from = min(from, max(f.From, o.At)) // whether its holder counted on it or not
			how += ", forgotten"
		}
	}
	if at := r.early(o.At); at <= to {
		from = min(from, at)
		how += ", by a clock set forward"
	}
	return from, to, how
}

// counted is end where nothing is forgotten.
func (r *Record) counted(o *op) (from, to Stamp, how string) {
	last, until, noticed := o.At, o.At, Forever // if it was over when the holder heard of it
	for _, e := range o.looks {
		if e.Kind == Counts {
			last, until = e.At, e.Until
		} else {
			noticed = min(noticed, e.At)
		}
	}
	lost := noticed < Forever
	how = "over"
	if o.killed != 0 {
		noticed, how = min(noticed, o.killed), "killed"
	}
	if o.ended != nil {
		out := o.ended.out()
		if out == Released {
			return o.ended.At, o.ended.back(), string(out)
		}
		noticed, how = min(noticed, o.ended.At), string(out)
		lost = lost || out == Lost
	}
	switch {
	case noticed >= until:
		return until, Forever, how // its last deadline had come
	case lost:
		return last, Forever, how // at some time between two looks
	}
	return noticed, Forever, how
}

// orphans are the handles that were let in to a hold after a server had forgotten it, or its clock had ended it early, by a
// process that did not know yet.
// They are no more of it than their holder's word, and are left out.
func (r *Record) orphans(all []*op) map[*op]bool {
	type hold struct {
		key   string
		token int64
	}
	first, orphans := map[hold]*op{}, map[*op]bool{}
	for _, o := range all {
		if o.What != Reentrant && o.What != Sharing || o.out() != Granted {
			continue
		}
		h := hold{o.Key, o.done.Token}
		if first[h] == nil {
			first[h] = o
			continue
		}
		for _, f := range r.Forgets {
			if first[h].At <= f.To && o.back() >= f.From {
				orphans[o] = true
			}
		}
		if r.early(first[h].At) <= o.back() {
			orphans[o] = true
		}
	}
	return orphans
}

// ghosts are the acquisitions that may have had a lock without telling when, by key.
type ghosts map[string][]ghost

// ghost may have had it until then, as far as others can tell.
type ghost struct {
	*op
	until Stamp
}

func (r *Record) ghosts(all []*op, orphans map[*op]bool) ghosts {
	unseen := ghosts{}
	for _, o := range all {
		if !o.What.acquires() {
			continue
		}
		// One that waits has a place in line, which it gives up in the background; its turn may come before that.
		// Of several servers each call has some for a while that it gives back, also where it got no majority.
		if o.out() == Unknown || o.out() == Refused && o.Waits || r.Quorum || orphans[o] {
			unseen[o.Key] = append(unseen[o.Key], ghost{o, Forever})
		} else if r.again(o) {
			unseen[o.Key] = append(unseen[o.Key], ghost{o, o.back()})
		}
	}
	return unseen
}

// again reports whether an acquisition may have had the lock before, in the same call: it was over when its process, which was
// stopped, heard of it, and was asked for again.
func (r *Record) again(o *op) bool {
	return o.out() == Granted && r.Lease > 0 && (o.back()-o.At >= Stamp(r.Lease)/2 || r.early(o.At) <= o.back())
}

// excuse reports whether the lock of a refused acquisition may have been somebody's who never knew.
func (g ghosts) excuse(refused *op) bool {
	return slices.ContainsFunc(g[refused.Key], func(o ghost) bool {
		return o.op != refused && o.At <= refused.back() && refused.At <= o.until
	})
}

// kept reports whether a refused acquisition met one of another owner that waited in line. That one is before it if the first of
// its own handles has ended; a record does not tell which was the first.
func kept(all []*op, refused *op) bool {
	return slices.ContainsFunc(all, func(o *op) bool {
		return o.Key == refused.Key && o.Waits && o.Owner != refused.Owner && o.At <= refused.back() && refused.At <= o.back()
	})
}

// remained is until when a lock may last that a process had when it was killed, or that its call never heard of.
func (r *Record) remained(o *op) Stamp {
	end := Forever
	if o.killed != 0 {
		end = o.killed
	}
	if o.out() == Unknown {
		end = min(end, o.back())
	}
	if r.Remains == 0 || end == Forever {
		return Forever
	}
	return end + Stamp(r.Remains)
}

// inVain reports whether a refusal says nothing of those inside: it may have met one that stands in line, one of its own
// process, which asks for several at a time, or one that never knew that it was inside.
func (r *Record) inVain(all []*op, unseen ghosts, refused *op) bool {
	for _, o := range all {
		if o.At > refused.back() {
			break
		}
		if o.Key == refused.Key && o != refused && refused.At <= o.back() && o.What.acquires() && (o.Waits || o.worker == refused.worker) {
			return true
		}
	}
	return slices.ContainsFunc(unseen[refused.Key], func(o ghost) bool {
		return o.op != refused && o.At <= refused.back() && refused.At <= o.until && (o.Waits || refused.At <= r.remained(o.op))
	})
}

// unseen reports whether one of o's owner may have had the lock.
func (g ghosts) unseen(o *op) bool {
	return slices.ContainsFunc(g[o.Key], func(g ghost) bool {
		had := g.out() != Granted || g.until < Forever && g.done.Token != o.done.Token
		return g.op != o && g.Owner == o.Owner && had && g.At <= o.back() && o.At <= g.until
	})
}

// operation gives the ends of holds a row of their own in a picture, as they overlap with the next call.
func operation(o *op, end bool, input, output any, from, to Stamp) porcupine.Operation {
	client := 2 * o.client
	if end {
		client++
	}
	return porcupine.Operation{ClientId: client, Input: input, Output: output, Call: int64(from), Return: int64(to)}
}
