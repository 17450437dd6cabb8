package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

var acquiring = []scenario{
	{
		name:   "acquire-reply-lost",
		wrong:  "The connection breaks after the server took the lock; the command is sent again and finds the key held, by the caller itself.",
		source: "https://github.com/redis/go-redis/issues/2985",
		run:    acquireReplyLost,
	},
	{
		name:   "acquire-abandoned",
		wrong:  "The reply does not come within the caller's deadline; the key stays for the lease, held by nobody.",
		source: "https://github.com/redis/rueidis/pull/1010",
		run:    acquireAbandoned,
	},
	{
		name:   "acquire-overtaken",
		wrong:  "The command reaches the server after its caller has given up; the key stays for the lease, held by nobody.",
		source: "https://github.com/antirez/redlock-rb/issues/3",
		run:    acquireOvertaken,
	},
	{
		name:   "hung-server-deadline",
		wrong:  "The server hangs; the call does not heed the deadline of its context.",
		source: "https://github.com/redis/go-redis/pull/2243",
		run: func(b *bed) verdict {
			return hungServer(b, func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), impatience)
			})
		},
	},
	{
		name:   "hung-server-cancel",
		wrong:  "The server hangs; the call does not heed the cancellation of its context.",
		source: "https://github.com/redis/go-redis/issues/2556",
		run: func(b *bed) verdict {
			return hungServer(b, func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(impatience, cancel)
				return ctx, cancel
			})
		},
	},
	{
		name:   "context-error-hidden",
		wrong:  "A wait that ended with its context fails with an error that does not say so.",
		source: "https://github.com/bsm/redislock/issues/79",
		run:    contextErrorHidden,
	},
	{
		name:   "outage-as-held",
		wrong:  "Redis is down, and the error says that somebody else has the lock.",
		source: "https://github.com/mike-marcacci/node-redlock/issues/51",
		run:    outageAsHeld,
	},
	{
		name:   "owner-by-prefix",
		wrong:  "Owners named by their callers are compared by their beginning: worker-1 takes the lock of worker-10.",
		source: "https://github.com/bsm/redislock/pull/71",
		needs:  []feature{identity},
		run:    ownerByPrefix,
	},
	{
		name:   "scripts-flushed",
		wrong:  "Redis forgets its scripts, as in a restart or by SCRIPT FLUSH, and the lock can be neither released nor taken.",
		source: "https://github.com/leandromoreira/redlock-rb/issues/27",
		run:    scriptsFlushed,
	},
}

const (
	// impatience is when callers give up where something hangs.
	impatience = 300 * time.Millisecond
	// unheeded is how much later they still wait: a loaded machine takes less, go-redis takes 3 s and more.
	unheeded = 2 * time.Second
	// stray is how late a command arrives that took a long way: go-redis has closed its connection after 3 s.
	stray = 4 * time.Second
)

func acquireReplyLost(b *bed) verdict {
	s := b.server()
	p := b.proxy(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: long})
	judged := b.once(p, servertest.LoseReplyAndClose)
	// Cancelled, and not with a deadline, as a deadline may bound the lease as well.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.AfterFunc(min(b.patience, 5*time.Second), cancel)
	h, err := l.acquire(ctx, order)
	switch {
	case !judged():
		b.Fatalf("no command named the key")
	case err == nil:
		b.keep(h)
		return pass("it has the lock")
	case b.freed(b.client(s)):
		return pass("it undid the acquisition: %v", brief(err))
	}
	return fail("%v, while the key holds the value that its own lost command wrote", brief(err))
}

func acquireAbandoned(b *bed) verdict {
	return abandoned(b, servertest.LoseReply, func() {})
}

func acquireOvertaken(b *bed) verdict {
	arrives := make(chan struct{})
	return abandoned(b, servertest.HoldRequest(arrives), func() {
		time.Sleep(stray)
		close(arrives)
	})
}

// abandoned has an acquisition go astray until its caller has given up; then whatever is left to come comes.
func abandoned(b *bed, v servertest.Verdict, then func()) verdict {
	s := b.server()
	p := b.proxy(s)
	l := b.open(settings{addrs: []string{p.Addr()}, lease: long})
	judged := b.once(p, v)
	ctx, cancel := context.WithTimeout(context.Background(), impatience)
	defer cancel()
	h, err := l.try(ctx, order)
	then()
	if !judged() {
		b.Fatalf("no command named the key")
	}
	if err == nil {
		b.keep(h)
		return pass("it returned the lock")
	}
	time.Sleep(impatience) // for what comes late to get there
	if !b.freed(b.client(s)) {
		return fail("%v, and %v later the key is still there", brief(err), b.patience)
	}
	return pass("the key is gone")
}

func hungServer(b *bed, until func() (context.Context, context.CancelFunc)) verdict {
	s := b.server()
	l := b.open(settings{addrs: []string{s.Addr()}, lease: 30 * time.Second})
	s.Pause()
	b.Cleanup(s.Resume)
	ctx, cancel := until()
	defer cancel()
	var err error
	took, in := b.within(impatience+unheeded, func() { _, err = l.try(ctx, order) })
	if !in {
		return fail("not back %v after its context ended", ms(took-impatience))
	}
	if err == nil {
		b.Fatalf("a stopped server granted the lock")
	}
	return pass("back %v after its context ended", ms(took-impatience))
}

func contextErrorHidden(b *bed) verdict {
	s := b.server()
	at := settings{addrs: []string{s.Addr()}, lease: long}
	b.take(b.open(at))
	l := b.open(at)
	ctx, cancel := context.WithTimeout(context.Background(), impatience)
	defer cancel()
	h, err := l.acquire(ctx, order)
	if err == nil {
		b.keep(h)
		return fail("it got the lock that another has")
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return fail("%q does not match context.DeadlineExceeded", brief(err))
	}
	return pass("%v", brief(err))
}

func outageAsHeld(b *bed) verdict {
	s := b.server()
	l := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	s.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := l.try(ctx, order)
	if err == nil {
		return fail("it got a lock from a server that is down")
	}
	if errors.Is(err, errHeld) {
		return fail("%v", brief(err))
	}
	return pass("%v", brief(err))
}

func ownerByPrefix(b *bed) verdict {
	s := b.server()
	first := b.open(settings{addrs: []string{s.Addr()}, lease: long, owner: "worker-10"})
	second := b.open(settings{addrs: []string{s.Addr()}, lease: long, owner: "worker-1"})
	b.take(first)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	h, err := second.try(ctx, order)
	if err == nil {
		b.keep(h)
		return fail("worker-1 got the lock that worker-10 has")
	}
	if !errors.Is(err, errHeld) {
		b.Fatalf("worker-1: %v", err)
	}
	return pass("worker-1 was refused")
}

func scriptsFlushed(b *bed) verdict {
	s := b.server()
	rdb := b.client(s)
	l := b.open(settings{addrs: []string{s.Addr()}, lease: long})
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	h := b.take(l)
	for _, act := range []struct {
		name string
		do   func() error
	}{
		{"release", func() error { return h.release(ctx) }},
		{"acquire", func() (err error) {
			if h, err = l.try(ctx, order); err == nil {
				b.keep(h)
			}
			return err
		}},
	} {
		if err := rdb.ScriptFlush(ctx).Err(); err != nil {
			b.Fatalf("SCRIPT FLUSH: %v", err)
		}
		if err := act.do(); err != nil {
			return fail("%s: %v", act.name, brief(err))
		}
	}
	return pass("it sent them again")
}

// brief is an error on one line.
func brief(err error) string {
	const most = 120
	text := []rune(fmt.Sprintf("%q", err.Error()))
	text = text[1 : len(text)-1]
	if len(text) > most {
		text = append(text[:most], '…')
	}
	return string(text)
}
