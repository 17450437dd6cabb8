package holdfast_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/internal/servertest/testlimit"
	"github.com/redis/go-redis/v9"
)

// masters are independent servers in one bubble.
type masters []*servertest.Bubble

func (ms masters) voter(t *testing.T, opts ...holdfast.Option) *voter {
	t.Helper()
	v := &voter{}
	var clients []*redis.Client
	for _, m := range ms {
		rdb := m.Client()
		clients = append(clients, rdb)
		v.links = append(v.links, m.Link(rdb))
	}
	l, err := redlock.New(clients, opts...)
	must(t, err)
	v.Locker = l
	return v
}

// having is how many masters have key, for whomever.
func (ms masters) having(key string) (n int) {
	for _, m := range ms {
		if m.Redis.Exists(key) {
			n++
		}
	}
	return n
}

// have checks that n masters have key.
func (ms masters) have(t *testing.T, key string, n int) {
	t.Helper()
	if have := ms.having(key); have != n {
		t.Errorf("%s is on %d masters, want %d", key, have, n)
	}
}

func (ms masters) commands() (n int) {
	for _, m := range ms {
		for _, k := range m.Commands() {
			n += int(k)
		}
	}
	return n
}

// bubbleOf runs fn in virtual time with n masters of its own. What fn leaves behind fails it.
func bubbleOf(t *testing.T, n int, fn func(t *testing.T, ms masters)) {
	t.Helper()
	testlimit.Turn(&processor)
	defer processor.Unlock()
	synctest.Test(t, func(t *testing.T) {
		var ms masters
		for range n {
			ms = append(ms, servertest.NewBubble(t))
		}
		fn(t, ms)
		synctest.Wait()
	})
}

// voter is one process: a Locker with a client and a link to each master.
type voter struct {
	*holdfast.Locker
	links []*servertest.Link
}

// on has fn judge the commands of all links.
func (v *voter) on(fn func([]string) servertest.Verdict) {
	for _, l := range v.links {
		l.OnCommand(fn)
	}
}

// next starts Acquire and returns where its result arrives.
func (v *voter) next(t *testing.T, key string) <-chan result {
	t.Helper()
	return call(background, &replica{Locker: v.Locker}, key)
}

// forget has a master forget key.
func forget(key string) func(*servertest.Bubble) {
	return func(m *servertest.Bubble) { m.Redis.Del(key) }
}

// voters runs fn in virtual time with n masters and two processes, which it shuts down.
func voters(t *testing.T, n int, fn func(t *testing.T, ms masters, a, b *voter), opts ...holdfast.Option) {
	t.Helper()
	bubbleOf(t, n, func(t *testing.T, ms masters) {
		a, b := ms.voter(t, opts...), ms.voter(t, opts...)
		fn(t, ms, a, b)
		shutdown(t, a.Locker)
		shutdown(t, b.Locker)
	})
}

// releaseAll releases a lock and waits until it is free on all masters, and for the next token.
func releaseAll(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	release(t, lock)
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// fleet is several independent servers.
type fleet []*servertest.Server

func (f fleet) clients() (all []*redis.Client) {
	for _, s := range f {
		all = append(all, s.Client())
	}
	return all
}

// locker is one process. Servers of a test are too young to vote, so there is no quarantine unless opts have one.
func (f fleet) locker(t *testing.T, opts ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	return quorum(t, f.clients(), opts...)
}

// without makes clients that do not reach the first n servers until heal.
func (f fleet) without(t *testing.T, n int) (all []*redis.Client, heal func()) {
	t.Helper()
	all = f.clients()
	var proxies []*servertest.FaultProxy
	for i := range n {
		p := servertest.Proxy(t, f[i].Addr())
		p.CutUp()
		proxies = append(proxies, p)
		all[i] = p.Client()
	}
	return all, func() {
		for _, p := range proxies {
			p.Heal()
		}
	}
}

func (f fleet) having(key string) (n int) {
	for _, s := range f {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		n += int(rdb.Exists(background, key).Val())
		_ = rdb.Close()
	}
	return n
}

// empty waits until no server has any of the keys.
func (f fleet) empty(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		until(t, key+" is free on all servers", func() bool { return f.having(key) == 0 })
	}
}

func (f fleet) addrs(is ...int) (all []string) {
	for _, i := range is {
		all = append(all, f[i].Addr())
	}
	return all
}

func (f fleet) restart(is ...int) {
	for _, i := range is {
		f[i].Kill()
		f[i].Start()
	}
}

// startFleet starts n servers, each with args.
func startFleet(t *testing.T, n int, args ...string) (f fleet) {
	t.Helper()
	for range n {
		f = append(f, servertest.Redis(t, args...))
	}
	return f
}

// quorum is a Locker of these masters, without a quarantine unless opts have one.
func quorum(t *testing.T, clients []*redis.Client, opts ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := redlock.New(clients, append([]holdfast.Option{redlock.WithQuarantine(0)}, opts...)...)
	must(t, err)
	return l
}

// young is what err says about masters in quarantine.
func young(t *testing.T, err error) *redlock.QuarantineError {
	t.Helper()
	var e *redlock.QuarantineError
	wantIs(t, err, holdfast.ErrUnavailable)
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a QuarantineError", err)
	}
	slices.Sort(e.Nodes)
	for _, addr := range e.Nodes {
		if !contains(err, addr) {
			t.Errorf("the text does not name %s: %v", addr, err)
		}
	}
	return e
}
