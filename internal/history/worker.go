package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Orders tell a worker what to do.
type Orders struct {
	ID   int // from 1
	Seed uint64

	Lock       string   // which implementation, see locks.go
	Nodes      []string // the servers, perhaps behind proxies
	Register   string
	Start      Stamp         // of the world
	Epoch      time.Duration // how long a key is used
	TTL        time.Duration
	Long       int // one in so many stays is up to more than a lease
	Quarantine time.Duration
	Limits     bool          // permits, readers and writers instead of all else
	Tries      bool          // with Limits: nobody waits
	Several    time.Duration // if any, several keys at a time instead of all else; a call that waits for longer is stuck
	Leads      bool          // with Several: all stand for election, and nothing else
	Clock      string        // of the servers, a file; every second tick goes by it. Empty for the true time

	// Apart has no call pass a lock on to another of the process: where servers forget, that goes on until a renewal.
	Apart bool
}

// passing tells whether releases travel in the background: those of every second process, unless refusals are to be laid to
// those inside.
func (o Orders) passing() bool { return o.Lock == Holdfast && o.ID%2 == 0 && !o.Tries }

// Work takes locks and claims ticks, writes what it sees into the journal, and ends some time after its input has.
func Work(o Orders, in io.Reader, out io.Writer) error {
	l, err := newLocks(o)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(stop)
	}()
	j := &journal{to: out}
	var loops sync.WaitGroup
	errs := make(chan error, 8)
	all := []func(*worker){(*worker).lock, (*worker).lock, (*worker).reenter, (*worker).reenter, (*worker).claim}
	if o.Limits {
		all = []func(*worker){(*worker).permit, (*worker).permit, (*worker).permit, (*worker).share, (*worker).share, (*worker).share}
	}
	if o.Several > 0 {
		all = []func(*worker){(*worker).transfer, (*worker).transfer}
		if _, ok := l.(ours); ok {
			all = append(all, (*worker).lead)
		}
		if o.Leads {
			all = []func(*worker){(*worker).lead, (*worker).lead}
		}
	}
	for i, each := range all {
		w := &worker{Orders: o, journal: j, locks: l, loop: i, stop: stop, rnd: rand.New(rand.NewPCG(o.Seed, uint64(o.ID*100+i)))}
		if w.register, err = net.Dial("tcp", o.Register); err != nil {
			return err
		}
		defer w.register.Close()
		w.reads, w.writes = json.NewDecoder(w.register), json.NewEncoder(w.register)
		loops.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				each(w)
				if w.failed != nil {
					errs <- w.failed
					return
				}
			}
		})
	}
	loops.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	return l.close()
}

// worker is one loop of a process.
type worker struct {
	Orders
	journal  *journal
	locks    locks
	loop     int
	rnd      *rand.Rand
	stop     <-chan struct{}
	register net.Conn
	reads    *json.Decoder
	writes   *json.Encoder
	failed   error
}

// epoch numbers the keys, so that the history of each is short.
func (w *worker) epoch() int64 { return int64(Before(time.Now())-w.Start) / int64(w.Epoch) }

func (w *worker) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d))) }

// one reports true once in n times.
func (w *worker) one(n int) bool { return w.rnd.IntN(n) == 0 }

// limit is the context of an acquisition: some give up early.
func (w *worker) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	d := 10 * time.Second
	if w.one(8) {
		d = w.upTo(w.TTL / 2)
	}
	return context.WithTimeout(ctx, d)
}

// lock takes a lock and writes to its register, whether it still counts on it or not.
func (w *worker) lock() {
	time.Sleep(w.upTo(4 * time.Millisecond))
	key := fmt.Sprintf("lock:%d:%d", w.epoch(), w.rnd.IntN(2))
	ctx, cancel := w.limit(context.Background())
	defer cancel()
	h := w.acquire(ctx, Entry{What: Locking, Key: key, Waits: !w.one(3)}, manner{bare: w.one(4)})
	if h == nil {
		return
	}
	value, ok := w.read(h)
	w.stay(h)
	if ok {
		w.write(h, value)
	}
	w.release(h)
}

// reenter takes a lock several times over.
func (w *worker) reenter() {
	time.Sleep(w.upTo(8 * time.Millisecond))
	epoch := w.epoch()
	first := Entry{What: Reentrant, Key: fmt.Sprintf("reentrant:%d", epoch), Waits: !w.one(3)}
	var how manner
	if len(w.Nodes) == 1 && !w.one(3) {
		how.id = fmt.Sprintf("job-%d-%d", epoch, w.rnd.IntN(2)) // that others name too
		first.Owner = how.id
	} else {
		first.Owner = fmt.Sprintf("%d/%d/%d", w.ID, w.loop, w.rnd.Int64())
	}
	ctx, cancel := w.limit(context.Background())
	defer cancel()
	h := w.acquire(ctx, first, how)
	if h == nil {
		return
	}
	held := []*hold{h}
	for range w.rnd.IntN(3) {
		w.stay(held...)
		ctx, cancel := w.limit(context.WithoutCancel(held[len(held)-1].Context(context.Background()))) // which says what is held
		next := w.acquire(ctx, first, manner{id: how.id, within: h})
		cancel()
		if next == nil {
			break
		}
		held = append(held, next)
	}
	w.rnd.Shuffle(len(held), func(i, k int) { held[i], held[k] = held[k], held[i] })
	for len(held) > 0 {
		w.stay(held...)
		w.release(held[0])
		held = held[1:]
	}
}

// transfer takes two or three of ten locks, in any order, and writes to their registers.
func (w *worker) transfer() {
	time.Sleep(w.upTo(4 * time.Millisecond))
	epoch, patience, patient := w.epoch(), w.Several, !w.one(8)
	if !patient {
		patience = w.upTo(w.TTL / 2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var keys []string
	var begun, ends []int
	for _, i := range w.rnd.Perm(10)[:2+w.rnd.IntN(2)] {
		e := Entry{What: Several, Key: fmt.Sprintf("several:%d:%d", epoch, i), Waits: true}
		keys, begun = append(keys, e.Key), append(begun, w.begin(e))
	}
	err := w.locks.several(ctx, keys, func(all []handle) {
		var held []*hold
		values, ok := make([]int64, len(all)), make([]bool, len(all))
		for i, got := range all {
			w.journal.done(Entry{Op: begun[i], Out: Granted, Token: got.Token()})
			held = append(held, &hold{handle: got, op: begun[i], key: keys[i]})
		}
		for i, h := range held {
			w.look(h)
			values[i], ok[i] = w.read(h)
		}
		w.stay(held...)
		for i, h := range held {
			if ok[i] {
				w.write(h, values[i])
			}
		}
		for _, h := range held {
			w.look(h)
			ends = append(ends, w.begin(Entry{What: Releasing, Of: h.op}))
		}
	})
	out := Unknown // some may have been held for a while, and of several releases that fail nobody knows which
	switch {
	case ends == nil && patient && errors.Is(err, holdfast.ErrNotAcquired):
		out = Stuck
	case ends != nil && err == nil && !w.passing():
		out = Released
	}
	if ends == nil {
		ends = begun
	}
	for _, op := range ends {
		w.journal.done(Entry{Op: op, Out: out})
	}
}

// lead stands for election, leads for a while, and stands again where that was lost. Every second context ends meanwhile, and
// it goes on all the same.
func (w *worker) lead() {
	w.Long = 2 // so that a worker that is stopped often leads
	time.Sleep(w.upTo(4 * time.Millisecond))
	e := Entry{What: Several, Key: fmt.Sprintf("lead:%d", w.epoch()), Waits: true}
	ctx, cancel := context.WithTimeout(context.Background(), w.Several)
	defer cancel()
	op := w.begin(e)
	err := w.locks.lead(ctx, e.Key, func(got handle) {
		if w.one(2) {
			defer time.AfterFunc(w.upTo(w.TTL/2), cancel).Stop() // lest it end a wait that follows, which would count as stuck
		}
		h := &hold{handle: got, op: op, key: e.Key}
		w.journal.done(Entry{Op: op, Out: Granted, Token: h.Token()})
		w.look(h)
		value, ok := w.read(h)
		w.stay(h)
		if ok {
			w.write(h, value) // whether it leads yet or not
		}
		w.look(h)
		w.begin(Entry{What: Releasing, Of: op}) // which lead does, and does not say when
		op = w.begin(e)
	})
	out := Unknown
	if errors.Is(err, holdfast.ErrNotAcquired) {
		out = Stuck
	}
	w.journal.done(Entry{Op: op, Out: out})
}

// permit takes a permit.
func (w *worker) permit() {
	w.enter(Entry{What: Permitted, Key: fmt.Sprintf("permit:%d", w.epoch()), Limit: w.deployed()})
}

// deployed is the limit that the process names: each deployment has another, and gets to one process after the other.
func (w *worker) deployed() int {
	limits := []int{3, 2, 3, 1, 2}
	since := time.Duration(Before(time.Now())-w.Start) + time.Duration(w.ID)*w.Epoch/10
	return limits[int(since/(w.Epoch/4))%len(limits)]
}

// share reads, or now and then writes.
func (w *worker) share() {
	e := Entry{What: Sharing, Key: fmt.Sprintf("shared:%d", w.epoch()), Limit: Unlimited}
	if w.one(5) {
		e.Limit = 1
	}
	w.enter(e)
}

// enter is inside with others for a while.
func (w *worker) enter(e Entry) {
	pause := 8 * time.Millisecond
	if w.Tries && e.What == Sharing { // so that now and then there is no reader whom the refusal of a writer could be laid to
		pause *= 4
	}
	time.Sleep(w.upTo(pause))
	e.Waits = !w.Tries && w.one(3)
	ctx, cancel := w.limit(context.Background())
	defer cancel()
	how := manner{bare: w.one(4), limit: e.Limit}
	if w.one(2) {
		how.share = fmt.Sprint("share", w.rnd.IntN(3))
	}
	if h := w.acquire(ctx, e, how); h != nil {
		w.stay(h)
		w.release(h)
	}
}

// claim claims what is due about now.
func (w *worker) claim() {
	const period = 20 * time.Millisecond
	gaps := w.rnd.IntN(2)
	e := Entry{What: Claiming, Key: fmt.Sprintf("tick:%d:%d", w.epoch(), gaps)}
	tick := time.Now()
	if gaps == 0 {
		time.Sleep(time.Until(tick.Truncate(period).Add(period)))
		tick = tick.Truncate(period).Add(time.Duration(1+max(0, w.rnd.IntN(5)-3)-max(0, w.rnd.IntN(5)-3)) * period)
	} else { // everyone by a period of its own
		time.Sleep(w.upTo(period))
		e.Gap = (period * 3 / 4).Microseconds()
	}
	if w.Clock != "" && w.one(2) {
		ahead, err := servertest.ReadClock(w.Clock)
		if err != nil {
			w.failed = err
			return
		}
		tick = tick.Add(ahead.Truncate(period))
	}
	e.Tick = tick.UnixMicro()
	ctx, cancel := context.WithTimeout(context.Background(), w.TTL)
	defer cancel()
	e.Op = w.begin(e)
	got, err := w.locks.claim(ctx, e.Key, time.UnixMicro(e.Tick), time.Duration(e.Gap)*time.Microsecond)
	w.outcome(e.Op, ofClaim(got, err))
}

// outcome notes that of a call. Where nobody knows, a rest helps what is overwhelmed.
func (w *worker) outcome(op int, out Outcome) {
	w.journal.done(Entry{Op: op, Out: out})
	if out == Unknown {
		time.Sleep(w.upTo(w.TTL / 10))
	}
}

func (w *worker) begin(e Entry) int {
	e.Loop = w.loop
	return w.journal.begin(e)
}

// hold is a handle and the number of its acquisition.
type hold struct {
	handle
	op   int
	key  string
	gone bool
}

// acquire returns nil if it gets no lock.
func (w *worker) acquire(ctx context.Context, e Entry, how manner) *hold {
	op := w.begin(e)
	got, err := w.locks.acquire(ctx, e.Key, e.Waits, how)
	if err != nil {
		w.outcome(op, ofAcquire(err))
		return nil
	}
	w.journal.done(Entry{Op: op, Out: Granted, Token: got.Token()})
	h := &hold{handle: got, op: op, key: e.Key}
	w.look(h)
	return h
}

// look notes whether a holder counts on its hold.
func (w *worker) look(h *hold) {
	if h.gone {
		return
	}
	at := time.Now()
	if h.Err() != nil {
		h.gone = true
		w.journal.note(Entry{Kind: NoMore, Op: h.op, At: After(time.Now())})
		return
	}
	until := h.Deadline() // in the past if the lock has ended since
	w.journal.note(Entry{Kind: Counts, Op: h.op, At: Before(at), Until: max(Before(at), Before(until))})
}

// stay spends some time under locks, mostly little, sometimes more than a lease.
func (w *worker) stay(all ...*hold) {
	d := w.upTo(4 * time.Millisecond)
	switch {
	case w.one(w.Long):
		d = w.upTo(3 * w.TTL / 2)
	case w.one(5):
		d = w.upTo(20 * time.Millisecond)
	}
	for end := time.Now().Add(d); ; {
		for _, h := range all {
			w.look(h)
		}
		left := time.Until(end)
		if left <= 0 {
			return
		}
		select {
		case <-w.stop:
			return
		case <-time.After(min(left, 10*time.Millisecond)):
		}
	}
}

func (w *worker) release(h *hold) {
	w.look(h)
	ctx, cancel := context.WithTimeout(context.Background(), w.TTL)
	defer cancel()
	op := w.begin(Entry{What: Releasing, Of: h.op})
	out := ofRelease(h.Release(ctx))
	if w.passing() && out == Released {
		out = Unknown // it may be on its way yet
	}
	w.journal.done(Entry{Op: op, Out: out})
}

// read returns the value of the register, unless it refuses the token.
func (w *worker) read(h *hold) (int64, bool) {
	op := w.begin(Entry{What: Reading, Of: h.op, Token: h.Token()})
	out := w.ask(request{Op: op, Key: h.key, Token: h.Token()})
	return out.Value, !out.Refused
}

// write puts a value into the register that nobody else writes.
func (w *worker) write(h *hold, based int64) {
	value := int64(w.ID)<<32 + int64(h.op)
	op := w.begin(Entry{What: Writing, Of: h.op, Token: h.Token(), Value: value, Based: based})
	w.ask(request{Op: op, Write: true, Key: h.key, Token: h.Token(), Value: value})
}

func (w *worker) ask(q request) (out FenceOutput) {
	q.Worker = w.ID
	if err := w.writes.Encode(q); err != nil {
		w.failed = err
		return FenceOutput{Refused: true}
	}
	if err := w.reads.Decode(&out); err != nil {
		w.failed = err
		return FenceOutput{Refused: true}
	}
	e := Entry{Op: q.Op, Out: Granted, Value: out.Value}
	if out.Refused {
		e.Out = Refused
	}
	w.journal.done(e)
	return out
}
