package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// electing is a locker that runs a function on one process at a time.
type electing interface {
	lead(ctx context.Context, name string, fn func(context.Context)) error
}

// transferring is a locker that takes several keys at a time.
type transferring interface {
	doAll(ctx context.Context, keys []string, fn func()) error
}

var keys = []scenario{
	{
		name:   "released-while-leading",
		wrong:  "A leader's context is cancelled, and the leadership is released while its function still runs: the next leads beside it.",
		source: "https://github.com/kubernetes/kubernetes/pull/139991",
		run:    releasedWhileLeading,
	},
	{
		name:   "opposite-transfers",
		wrong:  "Two transfers take the same two accounts in opposite order; each holds what the other waits for.",
		source: "https://github.com/redisson/redisson/issues/1160",
		run:    oppositeTransfers,
	},
}

func releasedWhileLeading(b *bed) verdict {
	s := b.server()
	at := settings{addrs: []string{s.Addr()}, lease: long}
	former, ok := b.open(at).(electing)
	if !ok {
		return verdict{noMatch, "it elects no leader"}
	}
	next := b.open(at).(electing)
	var calls sync.WaitGroup
	ctx, cancel := b.background()
	b.Cleanup(calls.Wait)
	b.Cleanup(cancel)
	leads, ends, led := make(chan struct{}), make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(ends) })
	b.Cleanup(end)
	leaving, leave := context.WithCancel(ctx)
	b.Cleanup(leave)
	calls.Go(func() {
		_ = former.lead(leaving, order, func(ctx context.Context) {
			close(leads)
			<-ctx.Done()
			<-ends // what it was at
		})
	})
	select {
	case <-leads:
	case <-time.After(tryFor):
		b.Fatalf("nobody leads")
	}
	calls.Go(func() { _ = next.lead(ctx, order, func(context.Context) { close(led) }) })
	leave()
	select {
	case <-led:
		return fail("the next leads while the function of the former runs")
	case <-time.After(time.Second):
	}
	end()
	select {
	case <-led:
		return pass("the next leads once the function of the former has returned")
	case <-time.After(b.patience):
		return fail("%v after the function of the former has returned nobody leads", b.patience)
	}
}

func oppositeTransfers(b *bed) verdict {
	const times = 20
	at := settings{addrs: []string{b.server().Addr()}, lease: long}
	var processes []transferring
	for range 2 {
		l, ok := b.open(at).(transferring)
		if !ok {
			return verdict{noMatch, "it takes one key at a time"}
		}
		processes = append(processes, l)
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.patience)
	defer cancel()
	var errs [2]error
	var calls sync.WaitGroup
	for i, accounts := range [][]string{{"account:1", "account:2"}, {"account:2", "account:1"}} {
		calls.Go(func() {
			for range times {
				errs[i] = errors.Join(errs[i], processes[i].doAll(ctx, accounts, func() { time.Sleep(time.Millisecond) }))
			}
		})
	}
	calls.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		if ctx.Err() == nil {
			b.Fatalf("%v", err)
		}
		return fail("after %v each waits for the other", b.patience)
	}
	return pass("%d transfers each way", times)
}

func (o ours) lead(ctx context.Context, name string, fn func(context.Context)) error {
	return o.locker.Lead(ctx, name, func(ctx context.Context) error { fn(ctx); return nil })
}

func (o ours) doAll(ctx context.Context, keys []string, fn func()) error {
	return o.locker.DoAll(ctx, keys, func(context.Context) error { fn(); return nil })
}
