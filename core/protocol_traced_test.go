//go:build holdfast_trace

package holdfast_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/model/trace"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// fed is what all tests of this build have fed to the specification.
var fed = struct {
	needed map[trace.Rule]string
	events int64
	took   time.Duration
}{needed: map[trace.Rule]string{}}

func init() { traced = func(t *testing.T, b *servertest.Bubble) { checkAll(t, newTrace(b.Client())) } }

func newTrace(rdb *redis.Client) *servertest.Trace {
	return &servertest.Trace{Checker: trace.Checker{Needed: fed.needed}, Client: rdb}
}

// check checks some of the events that a server has, and returns how many.
func check(t *testing.T, tr *servertest.Trace) int {
	t.Helper()
	began := time.Now()
	n, err := tr.Check()
	must(t, err)
	fed.events += int64(n)
	fed.took += time.Since(began)
	return n
}

// checkAll checks the last events of a server.
func checkAll(t *testing.T, tr *servertest.Trace) {
	t.Helper()
	for check(t, tr) > 0 {
	}
	must(t, tr.Finish())
	must(t, tr.Client.Del(background, trace.List+":n").Err())
}

// What the running code does is what its specification says: in the simulation, in some scenes, and on a real server. Without any of the rules
// something was done that has no explanation. TestScriptsDoWhatTheirSpecificationSays runs this in every normal run. With
// HOLDFAST_SOAK, the traffic on the server goes on for DURATION.
func TestTraced(t *testing.T) {
	t.Run("simulation", TestSimulation)
	t.Run("scenes", scenes)
	t.Run("server", func(t *testing.T) {
		enough := func() bool { return fed.events > 20_000 && len(fed.needed) == len(trace.Rules) }
		if d, err := time.ParseDuration(os.Getenv("DURATION")); err == nil && os.Getenv("HOLDFAST_SOAK") != "" {
			end := time.Now().Add(d)
			enough = func() bool { return time.Now().After(end) }
		}
		newTraffic(t).run(enough)
	})
	for _, r := range trace.Rules {
		t.Logf("without %q: %s", r, cmp.Or(fed.needed[r], "NOTHING IS INEXPLICABLE"))
		if fed.needed[r] == "" && os.Getenv("HOLDFAST_SOAK") == "" {
			t.Errorf("no event needs the rule %q", r)
		}
	}
	t.Logf("%d events checked, in %v", fed.events, fed.took.Round(time.Millisecond))
}

// scenes are of what seldom happens by chance.
func scenes(t *testing.T) {
	second := holdfast.WithTTL(time.Second)
	for name, scene := range map[string]func(t *testing.T, b *servertest.Bubble, start func() *replica){
		"acquire that arrives late": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			for limit := range 2 {
				r, arrives := start(), make(chan struct{})
				r.link.OnCommand(first("acquire", servertest.HoldRequest(arrives)))
				lock := await(t, r.Locker, "k", second, holdfast.WithLimit(1+limit))
				extend(t, lock, time.Minute)
				close(arrives)
				time.Sleep(time.Second)
				release(t, lock)
			}
		},
		"holders that die": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			r := start()
			for range 11 {
				await(t, r.Locker, "k", second, holdfast.WithoutRenewal())
			}
		},
		"holder with a limit that dies": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			await(t, start().Locker, "k", second, holdfast.WithoutRenewal(), holdfast.WithLimit(2))
			release(t, await(t, start().Locker, "k"))
		},
		"waiter that dies": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			lock, dead := acquire(t, start().Locker, "k"), start()
			ctx, cancel := context.WithCancel(background)
			gone := call(ctx, dead, "k")
			time.Sleep(time.Millisecond)
			dead.link.CutUp()
			next := call(background, start(), "k")
			time.Sleep(7 * time.Second)
			release(t, lock)
			release(t, got(t, next))
			cancel()
			<-gone
			dead.link.Heal()
		},
		"share that is passed over": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			lock, deaf := acquire(t, start().Locker, "k"), start()
			waits := call(background, deaf, "k", holdfast.WithShare("one"))
			time.Sleep(time.Second)
			deaf.link.Refuse(errRefused)
			deaf.link.Reset()
			next := call(background, start(), "k", holdfast.WithShare("two"))
			time.Sleep(time.Second)
			release(t, lock)
			then := got(t, next)
			deaf.link.Refuse(nil)
			release(t, then)
			release(t, got(t, waits))
		},
		"re-entry id": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			job := holdfast.WithReentryID("job")
			lock := acquire(t, start().Locker, "k", job)
			release(t, acquire(t, start().Locker, "k", job))
			waits := call(background, start(), "k")
			time.Sleep(time.Second)
			release(t, acquire(t, start().Locker, "k", job))
			release(t, lock)
			release(t, got(t, waits))
		},
		"waiters behind another library": func(t *testing.T, b *servertest.Bubble, start func() *replica) {
			change(t, b.Client(), "k", func(tx redis.Pipeliner) { tx.Set(background, "k", "somebody else", time.Second) })
			var all []<-chan result
			for range 2 {
				all = append(all, call(background, start(), "k", holdfast.WithLimit(2)))
			}
			for _, c := range all {
				defer release(t, got(t, c))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var rs []*replica
				scene(t, b, func() *replica {
					rs = append(rs, newReplica(t, b))
					return rs[len(rs)-1]
				})
				for _, r := range rs {
					shutdown(t, r.Locker)
				}
				traced(t, b)
			})
		})
	}
}

// change has somebody else change a lock, and says so in the trace.
func change(t *testing.T, rdb *redis.Client, key string, how func(tx redis.Pipeliner)) {
	t.Helper()
	_, err := rdb.TxPipelined(background, func(tx redis.Pipeliner) error {
		how(tx)
		tx.RPush(background, trace.List, trace.Outside(key))
		return nil
	})
	must(t, err)
}

// traffic is a number of processes on one real server, under faults.
type traffic struct {
	t      *testing.T
	server *servertest.Server
	admin  *redis.Client
	crew   []*member
	gone   []*member
	all    sync.WaitGroup
	rnd    *rand.Rand
}

// member is one process.
type member struct {
	*holdfast.Locker
	proxy *servertest.FaultProxy
	muted bool // the server lets it publish nothing
	over  context.Context
	end   context.CancelFunc
}

func newTraffic(t *testing.T) *traffic {
	tr := &traffic{t: t, server: servertest.Redis(t), rnd: rand.New(rand.NewPCG(rand.Uint64(), 1))}
	tr.admin = tr.server.Client()
	must(t, tr.admin.Do(background, "ACL", "SETUSER", "mute", "reset", "on", ">secret", "~*", "&*", "+@all", "-publish").Err())
	for i := range 6 {
		tr.crew = append(tr.crew, nil)
		tr.hire(i)
	}
	return tr
}

// hire starts a process in place of another.
func (tr *traffic) hire(i int) {
	m := &member{proxy: servertest.Proxy(tr.t, tr.server.Addr()), muted: i == 0}
	m.over, m.end = context.WithCancel(background)
	rdb := m.proxy.Client(func(o *redis.Options) {
		if m.muted {
			o.Username, o.Password = "mute", "secret"
		}
	})
	var opts []holdfast.Option
	if i%2 == 1 {
		opts = append(opts, holdfast.WithLocalHandover(3, 50*time.Millisecond))
	}
	m.Locker = newLocker(tr.t, rdb, opts...)
	tr.crew[i] = m
	for n := range 6 {
		rnd := rand.New(rand.NewPCG(tr.rnd.Uint64(), uint64(n)))
		tr.all.Go(func() {
			for m.over.Err() == nil {
				m.call(rnd)
			}
		})
	}
}

func upTo(rnd *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rnd.Int64N(int64(d))) + 1
}

// call takes a lock, whatever becomes of it.
func (m *member) call(rnd *rand.Rand) {
	ttl := []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second}[rnd.IntN(3)]
	opts := []holdfast.CallOption{holdfast.WithTTL(ttl)}
	key := []string{"plain", "lossy", "limit", "readers", "job", "share", "share", "mute"}[rnd.IntN(8)]
	if m.muted {
		key = "mute"
	}
	patience, hold, forgets := upTo(rnd, 600*time.Millisecond), upTo(rnd, 8*time.Millisecond), rnd.IntN(60) == 0
	switch key {
	case "lossy":
		opts = append(opts[:0], holdfast.WithTTL(100*time.Millisecond))
		forgets = rnd.IntN(2) == 0
	case "limit":
		opts = append(opts, holdfast.WithLimit(1+rnd.IntN(3)))
	case "readers":
		if rnd.IntN(4) > 0 {
			opts = append(opts, holdfast.WithShared())
		} else {
			opts = append(opts, holdfast.WithLimit(1+rnd.IntN(2)))
		}
	case "job":
		if rnd.IntN(4) > 0 {
			opts = append(opts, holdfast.WithReentryID(fmt.Sprint("job", rnd.IntN(2))))
		}
	case "share":
		if name := rnd.IntN(4); name > 0 {
			opts = append(opts, holdfast.WithShare(fmt.Sprint("share", name)), holdfast.WithShareWeight(1+rnd.IntN(3)))
		}
		if rnd.IntN(4) == 0 {
			opts = append(opts, holdfast.WithLimit(2))
		}
	case "mute":
		key = fmt.Sprint("mute", time.Now().Unix()/2) // a server that refused counts as mute for as long as there is a line
	}
	if forgets {
		opts = append(opts, holdfast.WithoutRenewal())
	}
	if rnd.IntN(20) == 0 {
		hold = upTo(rnd, 2*ttl)
	}
	ctx, cancel := context.WithTimeout(m.over, patience)
	defer cancel()
	take := m.Acquire
	if rnd.IntN(4) == 0 {
		take = m.TryAcquire
	}
	lock, err := take(ctx, key, opts...)
	if err != nil {
		select { // or tries of a held lock take all the processor
		case <-time.After(upTo(rnd, 4*time.Millisecond)):
		case <-m.over.Done():
		}
		return
	}
	if rnd.IntN(10) == 0 {
		_ = lock.Extend(ctx, ttl+upTo(rnd, ttl))
	}
	select {
	case <-time.After(hold):
	case <-m.over.Done():
	}
	if !forgets {
		_ = lock.Release(background)
	}
}

// run goes on until there was enough, and checks what there is meanwhile.
func (tr *traffic) run(enough func() bool) {
	c, next := newTrace(tr.admin), time.Now()
	for end := time.Now().Add(90 * time.Second); !enough() && (time.Now().Before(end) || os.Getenv("HOLDFAST_SOAK") != "") && !tr.t.Failed(); {
		if check(tr.t, c) == 0 {
			<-time.After(time.Millisecond)
		}
		if time.Now().After(next) {
			next = time.Now().Add(upTo(tr.rnd, 200*time.Millisecond))
			tr.fault()
		}
	}
	for _, m := range slices.Concat(tr.crew, tr.gone) {
		m.end()
		m.proxy.Heal()
	}
	tr.all.Wait()
	for _, m := range tr.crew {
		ctx, cancel := context.WithTimeout(background, 2*time.Second)
		_ = m.Shutdown(ctx)
		cancel()
	}
	checkAll(tr.t, c)
	if c.Events == 0 {
		tr.t.Error("the scripts wrote nothing")
	}
	tr.t.Logf("%d events on the server", c.Events)
}

// fault does something to a process, or to the server.
func (tr *traffic) fault() {
	i := tr.rnd.IntN(len(tr.crew))
	p, t := tr.crew[i].proxy, tr.t
	heal := func() { time.AfterFunc(upTo(tr.rnd, 400*time.Millisecond), func() { p.Heal(); p.OnCommand(nil) }) }
	switch tr.rnd.IntN(9) {
	case 0:
		p.CutUp()
		heal()
	case 1:
		p.CutDown()
		heal()
	case 2: // for a while nobody reads its inboxes
		p.CutUp()
		p.Reset()
		heal()
	case 3:
		var n atomic.Int64
		verdict := []servertest.Verdict{servertest.LoseReplyAndClose, servertest.LoseReply, servertest.LoseRequestAndClose}[tr.rnd.IntN(3)]
		p.OnCommand(func([]string) servertest.Verdict {
			if n.Add(1)%4 == 0 {
				return verdict
			}
			return servertest.Pass
		})
		heal()
	case 4: // it hangs for ever, or is killed
		m := tr.crew[i]
		if p.CutUp(); tr.rnd.IntN(2) == 0 {
			p.Reset()
		}
		p.CutDown()
		m.end()
		if tr.gone = append(tr.gone, m); len(tr.gone) > 8 { // or a soak has too many sockets
			tr.gone[0].proxy.Close()
			tr.gone = tr.gone[1:]
		}
		tr.hire(i)
	case 5: // inboxes are opened anew
		must(t, tr.admin.Do(background, "CLIENT", "KILL", "TYPE", "pubsub").Err())
	case 6:
		change(t, tr.admin, "plain", func(tx redis.Pipeliner) { tx.Del(background, "plain") })
	case 7: // another library
		change(t, tr.admin, "plain", func(tx redis.Pipeliner) {
			tx.SetNX(background, "plain", "somebody else", upTo(tr.rnd, 100*time.Millisecond)+time.Millisecond)
		})
	case 8:
		if tr.rnd.IntN(8) == 0 {
			must(t, tr.admin.FlushAll(background).Err())
		}
	}
}
