package core_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// fleet is several independent servers.
type fleet []*servertest.Server

func startFleet(t *testing.T, n int, args ...string) (f fleet) {
	t.Helper()
	for range n {
		f = append(f, servertest.Redis(t, args...))
	}
	return f
}

// durable servers lose nothing when they are killed, so that they need no quarantine.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

func (f fleet) clients() (all []*redis.Client) {
	for _, s := range f {
		all = append(all, s.Client())
	}
	return all
}

// locker is one process. Servers of a test are too young to vote, so there is no quarantine unless opts have one.
func (f fleet) locker(t *testing.T, opts ...core.Option) *core.Locker {
	t.Helper()
	return quorum(t, f.clients(), opts...)
}

func quorum(t *testing.T, clients []*redis.Client, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.NewRedLock(clients, append([]core.Option{core.WithQuarantine(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
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
		all[i] = redis.NewClient(&redis.Options{Addr: p.Addr()})
		t.Cleanup(func() { _ = all[i].Close() })
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
