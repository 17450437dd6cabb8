package history

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

const (
	hang    = time.Minute             // longer than anything but a hang takes
	lease   = 1200 * time.Millisecond // a command may take a quarter of it, on a machine that has other things to do
	epoch   = 2 * time.Second
	workers = 3 // at a time, unless the scene says so

	// quarantine covers the lease, and ripe is when servers vote under it: their age is known to the second.
	quarantine = 6500 * time.Millisecond
	ripe       = quarantine + 2*time.Second
)

// scene is what a world is made of.
type scene struct {
	lock     string // Holdfast, or a control
	nodes    int
	faults   []fault
	durable  bool // servers keep their data when they are killed
	exposed  bool // no quarantine where servers forget
	careless bool // registers take every token
	long     int  // see Orders; 0 for the usual
	lease    time.Duration
	uneven   bool // the first worker holds long, the others do not
	limits   bool // see Orders
	tries    bool
	several  time.Duration // see Orders
	leads    bool
	crew     int           // workers
	longer   time.Duration // than usual it is played, and a key is used
	unaware  bool          // its judge does not know of the steps of clocks
}

// ttl is the lease, unless the scene says so.
func (s scene) ttl() time.Duration { return cmp.Or(s.lease, lease) }

func (s scene) workers() int { return cmp.Or(s.crew, workers) }

// world is a scene that is played.
type world struct {
	scene
	t       *testing.T
	seed    uint64
	servers []*servertest.Server
	admins  []*redis.Client
	slots   [][]*servertest.FaultProxy // of the workers, one to a server
	orders  Orders
	record  Record
	clocks  []*wound
	far     int // the direction of the long steps of its clocks

	stepping sync.Mutex // held while a clock is stepped

	unheard func() // ends what hears its trace; nil where nothing does

	mu       sync.Mutex // guards what follows
	running  []*process
	gone     []*process
	lastID   int
	happened map[string]int // faults
}

// play plays a scene for length under its faults, and goes on without them until there is something to judge by each
// model, if it is to.
func (s scene) play(t *testing.T, seed uint64, length time.Duration, enough bool) *world {
	t.Helper()
	w := &world{scene: s, t: t, seed: seed, happened: map[string]int{},
		slots: make([][]*servertest.FaultProxy, s.workers()), running: make([]*process, s.workers())}
	w.open()
	rnd := rand.New(rand.NewPCG(seed, 1))
	over, stop := context.WithTimeout(context.Background(), length+s.longer)
	defer stop()
	var faults sync.WaitGroup
	var own []fault // those that may end the test do it on its goroutine
	for _, f := range s.faults {
		mine := rand.New(rand.NewPCG(rnd.Uint64(), 2))
		if f.own {
			own = append(own, f)
			continue
		}
		faults.Go(func() { w.haunt(over, f, mine) })
	}
	for _, f := range own {
		w.haunt(over, f, rnd)
	}
	<-over.Done()
	faults.Wait()
	for end := time.Now().Add(hang); enough && !w.enough() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	w.close()
	return w
}

// haunt has one fault happen again and again.
func (w *world) haunt(over context.Context, f fault, rnd *rand.Rand) {
	for pause(over, f.rest/2+time.Duration(rnd.Int64N(int64(f.rest)))) {
		w.mu.Lock()
		w.happened[f.name]++
		w.mu.Unlock()
		f.strike(w, over, rnd)
	}
}

// pause reports whether the world goes on after d.
func pause(over context.Context, d time.Duration) bool {
	select {
	case <-over.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (w *world) open() {
	t := w.t
	args := []string(nil)
	if w.durable {
		args = servertest.Durable
	}
	w.wind(args...)
	for _, s := range w.servers {
		w.admins = append(w.admins, s.Client())
		for i := range w.slots {
			if w.proxied() {
				w.slots[i] = append(w.slots[i], servertest.Proxy(t, s.Addr()))
			}
		}
	}
	if traced(w.scene) {
		w.unheard = hear(w)
	}
	registers, err := Serve(w.careless)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { registers.Close(true) })
	w.record.Registers, w.record.Quorum = registers, w.nodes > 1
	w.orders = Orders{Clock: w.orders.Clock, Seed: w.seed, Lock: w.lock, Register: registers.Addr(), Start: Before(time.Now()), Epoch: epoch + w.longer, TTL: w.ttl(), Long: max(w.long, 1), Limits: w.limits, Tries: w.tries, Several: w.several, Leads: w.leads}
	if !w.proxied() && w.clocks == nil {
		w.record.Remains = w.ttl() + time.Second
	}
	w.orders.Apart = !w.durable && !w.quarantined() && w.forgetful()
	if w.long == 0 {
		w.orders.Long = 25
		if w.limits || w.several > 0 { // where all wait behind one that waits for a long one
			w.orders.Long = 100
		}
	}
	if w.quarantined() {
		w.orders.Quarantine = quarantine
		time.Sleep(ripe)
	}
	t.Cleanup(func() {
		for _, p := range w.running {
			if p != nil {
				p.kill()
			}
		}
	})
	for i := range w.running {
		w.hire(i)
	}
}

func (w *world) quarantined() bool {
	return w.nodes > 1 && !w.durable && !w.exposed && slices.ContainsFunc(w.faults, func(f fault) bool { return f.restarts })
}

func (w *world) forgetful() bool {
	return slices.ContainsFunc(w.faults, func(f fault) bool { return f.forgets })
}
func (w *world) proxied() bool {
	return slices.ContainsFunc(w.faults, func(f fault) bool { return f.links })
}

// hire starts a worker in a slot. It is not called at the same time as close.
func (w *world) hire(slot int) {
	o := w.orders
	if w.uneven {
		o.Long = 1
		if slot > 0 {
			o.Long = 1000
		}
	}
	for i, server := range w.servers {
		addr := server.Addr()
		if w.proxied() {
			addr = w.slots[slot][i].Addr()
		}
		o.Nodes = append(o.Nodes, addr)
	}
	w.mu.Lock()
	w.lastID++
	o.ID = w.lastID
	w.mu.Unlock()
	p, err := start(o)
	if err != nil {
		w.t.Errorf("start a worker: %v", err)
		return
	}
	w.mu.Lock()
	if was := w.running[slot]; was != nil {
		w.gone = append(w.gone, was)
	}
	w.running[slot] = p
	w.mu.Unlock()
}

// victim picks a worker, rather one that holds something.
func (w *world) victim(rnd *rand.Rand) (slot int, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot = rnd.IntN(len(w.running))
	if rnd.IntN(4) > 0 {
		latest := Stamp(0)
		for i, p := range w.running {
			p.mu.Lock()
			if p.counted > latest {
				slot, latest = i, p.counted
			}
			p.mu.Unlock()
		}
	}
	return slot, w.running[slot]
}

func (w *world) all() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := append([]*process(nil), w.gone...)
	for _, p := range w.running {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// enough reports whether there is something to judge by each model.
func (w *world) enough() bool {
	sum, over := map[What]int{}, 0
	for _, p := range w.running {
		if p.Gone() { // by itself, which is an error
			over++
		}
	}
	for _, p := range w.all() {
		p.mu.Lock()
		for what, n := range p.granted {
			sum[what] += n
		}
		p.mu.Unlock()
	}
	if w.several > 0 {
		return over == len(w.running) || sum[Several] >= 20
	}
	if w.limits {
		return over == len(w.running) || sum[Permitted] >= 10 && sum[Sharing] >= 10
	}
	return over == len(w.running) || sum[Locking] >= 10 && sum[Reentrant] >= 5 && sum[Claiming] >= 5
}

// close ends the workers and completes the record.
func (w *world) close() {
	t := w.t
	t.Helper()
	var leaving sync.WaitGroup
	for _, p := range w.running {
		if p != nil {
			leaving.Go(func() { p.leave(t) })
		}
	}
	leaving.Wait()
	if w.unheard != nil {
		w.unheard()
	}
	if w.several > 0 && w.lock == Holdfast {
		w.leftovers()
	}
	w.record.Registers.Close(false)
	for _, p := range w.all() {
		w.record.Logs = append(w.record.Logs, p.log)
	}
	if w.unaware {
		w.record.Steps = nil
	}
}

// leftovers fails the test for a lock that outlives its holders by more than a lease, and for anything that stays.
func (w *world) leftovers() {
	ctx, admin, left := context.Background(), w.admins[0], []string(nil)
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		all, err := admin.Keys(ctx, "*").Result()
		if err != nil {
			w.t.Fatal(err)
		}
		left = nil
		for _, key := range all {
			switch ttl := admin.PTTL(ctx, key).Val(); {
			case ttl == -1:
				w.t.Errorf("SEED=%d: %s stays for ever", w.seed, key)
			case ttl > 0 && !strings.Contains(key, ":~"):
				left = append(left, key)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	w.t.Errorf("SEED=%d: left behind: %v", w.seed, left)
}

// forgot notes that a server may have forgotten its data since.
func (w *world) forgot(since Stamp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Forgets = append(w.record.Forgets, Span{From: since, To: After(time.Now())})
}
