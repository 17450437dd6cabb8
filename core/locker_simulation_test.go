package holdfast_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Several processes under random faults, from a seed: nobody counts as holding together with more than its own limit allows,
// tokens rise, nobody waits for ever, and nothing stays in Redis or in the processes. In every second schedule each process
// names a limit of its own, and another when it is deployed anew, and in every second there are three keys, of which many calls
// take several. See seeds for how many run, and how to repeat one.
func TestSimulation(t *testing.T) {
	sum, ran := &simulation{}, 0
	var report time.Time
	tell := func() {
		t.Logf("%d calls, %d locks, %d of them lost, %d together, %d calls had several", sum.calls, sum.served, sum.lost, sum.most, sum.several)
	}
	for seed := range seeds(t, 10) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			s := &simulation{t: t, b: b, seed: seed, rnd: rand.New(rand.NewPCG(seed, 7))}
			s.run()
			sum.calls += s.calls
			sum.served += s.served
			sum.several += s.several
			sum.lost += s.lost
			sum.most = max(sum.most, s.most)
		})
		if ran++; time.Since(report) > time.Minute {
			report = time.Now()
			tell()
		}
	}
	tell()
	if ran >= 20 && (sum.most < 3 || sum.several < ran) || ran >= 40 && (sum.served < sum.calls/10 || sum.lost == 0) {
		t.Error("that is a simulation of nothing")
	}
}

type simulation struct {
	t    *testing.T
	b    *servertest.Bubble
	seed uint64
	rnd  *rand.Rand
	old  []*replica // shut down, or about to be

	mu      semaphore // guards what follows; not a mutex, on which virtual time would not go on while Err asks Redis
	rs      []*replica
	limits  []int // of the processes; 0 is shared, and nil without
	keys    []string
	ledgers map[string]*ledger
	back    bool      // its clock was set back, and with amnesia it repeats tokens
	amnesia time.Time // when Redis last lost its data, or its clock was set forward
	asked   map[*holdfast.Lock]time.Time

	skew time.Duration // of Redis' clock

	calls, served, lost, most, several int
}

// ledger is what is known of one key.
type ledger struct {
	live  []*holdfast.Lock
	last  int64 // the largest token
	alone int64 // the largest of a lock that nobody else may have
}

func (s *simulation) fail(format string, args ...any) {
	s.t.Errorf("SEED=%d: %s", s.seed, fmt.Sprintf(format, args...))
}

// expect fails if err is another failure than those that may be.
func (s *simulation) expect(what string, err error, may ...error) {
	if err != nil && !isOf(err, may...) {
		s.fail("%s: %v", what, err)
	}
}

func (s *simulation) ms(n int) time.Duration {
	return time.Duration(s.rnd.IntN(n)+1) * time.Millisecond
}

func (s *simulation) run() {
	s.mu, s.asked = make(semaphore, 1), map[*holdfast.Lock]time.Time{}
	s.keys = []string{"k"}
	limited := s.rnd.IntN(2) == 0
	if s.rnd.IntN(2) == 0 {
		s.keys = []string{"k", "l", "m"}
	}
	s.ledgers = map[string]*ledger{}
	for _, key := range s.keys {
		s.ledgers[key] = &ledger{}
	}
	for range 2 + s.rnd.IntN(2) {
		s.rs = append(s.rs, s.start())
		if limited {
			s.limits = append(s.limits, s.rnd.IntN(4))
		}
	}
	var all sync.WaitGroup
	calls := 8 + s.rnd.IntN(8)
	if limited {
		calls *= 2
	}
	for range calls {
		s.call(&all)
	}
	quiet := make(chan struct{})
	if s.seed%16 == 1 {
		s.crowd(&all, quiet)
	}
	if s.seed%16 == 5 {
		s.flood(&all, quiet)
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(7 * time.Millisecond):
				s.check()
			}
		}
	})
	for range s.rnd.IntN(6) {
		time.Sleep(s.ms(400))
		s.fault(&all)
	}
	time.Sleep(s.ms(1000))
	s.b.Resume()
	every := append(s.rs, s.old...)
	for _, r := range every {
		r.link.Heal()
		r.link.OnCommand(nil)
		r.link.OnMessage(nil)
		r.link.Delay(0)
	}
	close(quiet)
	all.Wait()
	close(over)
	watching.Wait()
	for _, r := range every {
		shutdown(s.t, r.Locker)
		if q, n := holdfast.Turns(r.Locker), holdfast.Tenures(r.Locker); q != 0 || n != 0 {
			s.fail("%d rows and %d tenures left", q, n)
		}
	}
	if traced != nil {
		traced(s.t, s.b)
	}
	time.Sleep(10 * time.Minute)
	s.b.Skew(0)
	if keys := s.b.Redis.Keys(); len(keys) != 0 {
		s.fail("left in Redis: %v", keys)
	}
}

// start starts a process.
func (s *simulation) start() *replica {
	opts := []holdfast.Option{holdfast.WithTTL([]time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second}[s.rnd.IntN(3)])}
	switch s.rnd.IntN(3) {
	case 0:
		opts = append(opts, holdfast.WithLocalHandover(0, 0))
	case 1:
		opts = append(opts, holdfast.WithLocalHandover(2, s.ms(int(handover.Milliseconds()))))
	}
	if s.seed%3 == 0 {
		opts = append(opts, holdfast.WithReleaseInBackground())
	}
	r := newReplica(s.t, s.b, opts...)
	if s.seed%2 == 0 {
		r = newInline(s.t, s.b, opts...)
	}
	r.link.Delay(time.Duration(s.rnd.IntN(3)) * time.Millisecond)
	return r
}

// handover is for how long a lock passes on among the calls of a process without a word to Redis.
const handover = 100 * time.Millisecond

// call lets a process take the lock at a random moment and hold it for a random time.
func (s *simulation) call(under *sync.WaitGroup) {
	i := s.rnd.IntN(len(s.rs))
	start, limit, hold := s.ms(1500), s.ms(4000), s.ms(30)
	if s.rnd.IntN(4) == 0 || s.limits != nil && s.rnd.IntN(2) == 0 {
		hold = s.ms(700)
	}
	try := false
	var opts []holdfast.CallOption
	switch s.rnd.IntN(10) {
	case 0:
		try = true
	case 1:
		opts = append(opts, holdfast.WithWait(s.ms(500)))
	case 2:
		opts = append(opts, holdfast.WithoutRenewal())
	case 3:
		opts = append(opts, holdfast.WithMaxHold(5*time.Second))
	case 4:
		opts = append(opts, holdfast.WithTTL(300*time.Millisecond))
	case 5:
		opts = append(opts, holdfast.WithProgress(time.Millisecond+s.ms(3000)))
	}
	if s.seed%3 == 1 {
		if name := s.rnd.IntN(4); name > 0 {
			opts = append(opts, holdfast.WithShare(fmt.Sprint("share", name)))
		}
		opts = append(opts, holdfast.WithShareWeight(1+s.rnd.IntN(3)))
	}
	extend := s.rnd.IntN(10) == 0
	key := s.keys[s.rnd.IntN(len(s.keys))]
	var all []string // that the call takes
	if len(s.keys) > 1 && s.rnd.IntN(3) > 0 {
		for _, i := range s.rnd.Perm(len(s.keys))[:2+s.rnd.IntN(2)] {
			all = append(all, s.keys[i])
		}
	}
	if all != nil && s.rnd.IntN(3) == 0 {
		opts = append(opts, holdfast.OnKey(all[0], holdfast.WithLimit(1+s.rnd.IntN(3))))
	}
	panics := s.rnd.IntN(10) == 0
	s.calls++
	under.Go(func() {
		time.Sleep(start)
		s.mu.Lock()
		r := s.rs[i]
		if s.limits != nil && s.limits[i] == 0 {
			opts = append(opts, holdfast.WithShared())
		} else if s.limits != nil {
			opts = append(opts, holdfast.WithLimit(s.limits[i]))
		}
		s.mu.Unlock()
		if all != nil {
			if try {
				opts = append(opts, holdfast.WithWait(0))
			}
			s.callAll(r, all, limit, hold, panics, opts)
			return
		}
		ctx, cancel := context.WithTimeout(background, limit)
		defer cancel()
		take := r.Acquire
		if try {
			take = r.TryAcquire
		}
		asked := time.Now()
		lock, err := take(ctx, key, opts...)
		if late := time.Since(asked) - limit; late > 0 {
			s.fail("returned %v after its context", late)
		}
		if err != nil {
			s.expect("acquire", err, holdfast.ErrNotAcquired, holdfast.ErrUnavailable, holdfast.ErrClosed)
			return
		}
		s.add(lock, asked)
		if extend {
			_ = lock.Extend(ctx, 2*time.Second)
		}
		select {
		case <-time.After(hold):
		case <-lock.Context(background).Done():
		}
		s.remove(lock)
		s.expect("release", lock.Release(background), holdfast.ErrLost, holdfast.ErrUnavailable)
	})
}

// patience is longer than a call waits for locks that come free: the other calls are over by then, and every lease is.
const patience = 2 * time.Minute

// callAll takes several keys. Every second call has the patience to see whether they come free: calls that wait in a circle,
// or for what another has left behind, do so until their contexts end.
func (s *simulation) callAll(r *replica, keys []string, limit, hold time.Duration, panics bool, opts []holdfast.CallOption) {
	if limit > 2*time.Second {
		limit = patience
	}
	ctx, cancel := context.WithTimeout(background, limit)
	defer cancel()
	asked := time.Now()
	var locks []*holdfast.Lock
	err := func() error {
		defer func() {
			if p := recover(); p != nil && p != errWork {
				panic(p)
			}
		}()
		return r.DoAll(ctx, keys, func(ctx context.Context) error {
			if late := time.Since(asked) - limit; late > 0 {
				s.fail("%v runs %v after the end of its context", keys, late)
			}
			if locks = holdfast.Held(ctx); len(locks) != len(keys) {
				s.fail("%d locks for %v", len(locks), keys)
			}
			for _, lock := range locks {
				s.add(lock, asked)
			}
			select {
			case <-time.After(hold):
			case <-ctx.Done():
			}
			for _, lock := range locks {
				if s.remove(lock); lock.Err() == nil {
					continue
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
					s.fail("%s is lost, and the context of %v goes on", lock.Key(), keys)
				}
			}
			if panics {
				panic(errWork)
			}
			return nil
		}, opts...)
	}()
	switch late := time.Since(asked) - limit; {
	case locks != nil:
		s.mu.Lock()
		s.several++
		s.mu.Unlock()
	case limit == patience && late >= 0:
		s.fail("%v is waited for for ever: %v", keys, err)
	case late > 20*time.Millisecond: // that a release takes under an ended context
		s.fail("returned %v after its context", late)
	case err == nil:
		s.fail("%v: nothing ran, and no error", keys)
	}
	for _, lock := range locks {
		if lock.Err() == nil {
			s.fail("%s of %v is held after the call", lock.Key(), keys)
		}
	}
	s.expect("several", err, failures...)
}

// crowd has each process take other keys as well, all at once every now and then and by few lanes, so that what is under way
// for k travels together with that.
func (s *simulation) crowd(all *sync.WaitGroup, quiet <-chan struct{}) {
	for i, r := range s.rs {
		holdfast.Narrow(r.Locker)
		for k := range 8 {
			rnd := rand.New(rand.NewPCG(s.seed, uint64(100*i+k)))
			all.Go(func() {
				for ; !closed(quiet); time.Sleep(25 * time.Millisecond) {
					s.other(r, fmt.Sprint("other", i, k%6), time.Duration(rnd.IntN(500)+1)*time.Millisecond)
				}
			})
		}
	}
}

// flood has a process take other keys in an open loop: more calls than it can serve, at times, whatever becomes of them.
func (s *simulation) flood(all *sync.WaitGroup, quiet <-chan struct{}) {
	rnd := rand.New(rand.NewPCG(s.seed, 11))
	pause, patience := time.Duration(rnd.IntN(2000)+200)*time.Microsecond, time.Duration(rnd.IntN(500)+50)*time.Millisecond
	r := s.rs[0]
	all.Go(func() {
		for i := 0; i < 1000 && !closed(quiet); i++ {
			all.Go(func() { s.other(r, fmt.Sprint("flood", i%300), patience) })
			time.Sleep(pause)
		}
	})
}

func (s *simulation) other(r *replica, key string, patience time.Duration) {
	ctx, cancel := context.WithTimeout(background, patience)
	defer cancel()
	lock, err := r.Acquire(ctx, key)
	if err == nil {
		err = lock.Release(ctx)
	}
	s.expect(key, err, failures...)
}

func (s *simulation) add(lock *holdfast.Lock, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served++
	k := s.ledgers[lock.Key()]
	before := k.alone // those that are together have no order
	if lock.Limit() == 1 {
		before = k.last
		k.alone = max(k.alone, lock.Token())
	}
	if lock.Token() <= before && lock.Err() == nil && !s.forgotten(asked) && !(s.back && !s.amnesia.IsZero()) {
		s.fail("token %d of %s after %d", lock.Token(), lock.Key(), before)
	}
	k.last = max(k.last, lock.Token())
	k.live = append(k.live, lock)
	s.asked[lock] = asked
	s.together(k)
}

func (s *simulation) remove(lock *holdfast.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock.Err() != nil {
		s.lost++
	}
	k := s.ledgers[lock.Key()]
	k.live = slices.DeleteFunc(k.live, func(l *holdfast.Lock) bool { return l == lock })
}

func (s *simulation) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.ledgers {
		s.together(k)
	}
}

// forgotten tells whether Redis may have forgotten the lock of a call: it may be a grant from before that was long on its
// way, or have passed on within its process.
func (s *simulation) forgotten(asked time.Time) bool {
	return !s.amnesia.IsZero() && !asked.After(s.amnesia.Add(handover))
}

// together fails if more count themselves as holding than one of them allows. Redis cannot exclude those that it has
// forgotten.
func (s *simulation) together(k *ledger) {
	var tokens, limits []int64
	least := int64(math.MaxInt64)
	for _, l := range k.live {
		if s.forgotten(s.asked[l]) || l.Err() != nil {
			continue
		}
		tokens, limits = append(tokens, l.Token()), append(limits, int64(l.Limit()))
		if l.Limit() > 0 {
			least = min(least, int64(l.Limit()))
		}
	}
	if int64(len(tokens)) > least {
		s.fail("%d together, %d, with the limits %d", len(tokens), tokens, limits)
	}
	s.most = max(s.most, len(tokens))
}

// fault does something to one link, to Redis, or to a process.
func (s *simulation) fault(all *sync.WaitGroup) {
	i := s.rnd.IntN(len(s.rs))
	r := s.rs[i]
	heal := func() { time.AfterFunc(s.ms(1500), r.link.Heal) }
	forgets := func() { s.mu.Lock(); s.amnesia = time.Now(); s.mu.Unlock() }
	n := s.rnd.IntN(16)
	if traced != nil && n >= 10 && n <= 12 {
		return // no trace tells what comes from outside
	}
	switch n {
	case 0:
		r.link.CutUp()
		heal()
	case 1:
		r.link.CutDown()
		heal()
	case 2:
		r.link.CutUp()
		r.link.CutDown()
		heal()
	case 3:
		r.link.Delay(s.ms(60))
	case 4:
		r.link.DelayDown(s.ms(200))
	case 5:
		r.link.Reset()
	case 6:
		forgets()
		if s.rnd.IntN(2) == 0 {
			s.b.Restart()
		} else {
			s.b.Redis.FlushAll()
		}
	case 7:
		s.flaky(r, []servertest.Verdict{servertest.LoseReply, servertest.LoseReplyAndClose, servertest.LoseRequest, servertest.LoseRequestAndClose}[s.rnd.IntN(4)])
	case 8: // grants go astray
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.LoseReply })
		time.AfterFunc(s.ms(1000), func() { r.link.OnMessage(nil) })
	case 9: // a machine is suspended: its wall clock shows it afterwards
		holdfast.SkewWall(r.Locker, s.ms(3000))
	case 10:
		s.mu.Lock()
		s.back = true
		s.mu.Unlock()
		s.skew -= s.ms(2000)
		s.b.Skew(s.skew)
	case 11: // forward it may let go of locks before their time
		forgets()
		s.skew += s.ms(2000)
		s.b.Skew(s.skew)
	case 12: // an operator
		forgets()
		s.b.Redis.Del(s.keys[s.rnd.IntN(len(s.keys))])
	case 15: // it stands still
		s.b.Pause()
		time.AfterFunc(s.ms(3000), s.b.Resume)
	case 13, 14: // a deployment, with another limit
		s.old = append(s.old, r)
		anew, limit := s.start(), s.rnd.IntN(4)
		s.mu.Lock()
		if s.rs[i] = anew; s.limits != nil {
			s.limits[i] = limit
		}
		s.mu.Unlock()
		patience := s.ms(3000)
		all.Go(func() {
			ctx, cancel := context.WithTimeout(background, patience)
			defer cancel()
			_ = r.Shutdown(ctx)
		})
	}
	synctest.Wait()
}

// flaky loses one in four commands for a while.
func (s *simulation) flaky(r *replica, v servertest.Verdict) {
	rnd := rand.New(rand.NewPCG(s.seed, 99))
	var mu sync.Mutex
	r.link.OnCommand(func([]string) servertest.Verdict {
		mu.Lock()
		defer mu.Unlock()
		if rnd.IntN(4) == 0 {
			return v
		}
		return servertest.Pass
	})
	time.AfterFunc(s.ms(800), func() { r.link.OnCommand(nil) })
}
