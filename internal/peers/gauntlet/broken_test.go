package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

// flawed is a library that makes every mistake there is a scenario for, as far as one lock can make them all.
func flawed(f flaw) library {
	return library{
		name: "flawed",
		key:  sameKey,
		open: func(s settings) (locker, error) {
			b := broken{settings: s, flaw: f}
			for _, addr := range s.addrs {
				b.clients = append(b.clients, redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 1}))
			}
			if err := b.load(); err != nil {
				return nil, err
			}
			switch f {
			case firstInLine, lastInLine:
				return lined{b}, nil
			case listens:
				return listening{b}, nil
			case reads:
				return shelf{b}, nil
			}
			return b, nil
		},
	}
}

// flaw is which of those mistakes it makes that exclude each other.
type flaw int

const (
	polls       flaw = iota // every 5 ms
	listens                 // for the message of a release, and for nothing else
	firstInLine             // a release hands the lock to the first waiter, alive or not
	lastInLine              // or last
	renewsOn                // without a pause, and after the release
	dozes                   // it polls, now and then
	joins                   // an owner that comes again has the longer lease, and leaves it behind
	takesBack               // what it renews, from whomever
	reads                   // readers renew each other's leases
)

type broken struct {
	clients []*redis.Client
	settings
	flaw flaw
}

// deleteScript does not look whose key it is, and is sent by its hash alone.
const deleteScript = `return redis.call('DEL', KEYS[1])`

func (b broken) load() error {
	for _, c := range b.clients {
		if err := c.ScriptLoad(context.Background(), deleteScript).Err(); err != nil {
			return err
		}
	}
	return nil
}

var errEnded = errors.New("no lock")

// stranded is what leaked goroutines wait for; the tests close it.
var stranded = make(chan struct{})

func (b broken) try(ctx context.Context, key string) (got lock, _ error) {
	value := b.owner
	if value == "" {
		value = rand.Text()
	}
	votes := 0
	var failure error
	for _, c := range b.clients { // one after the other
		if ctx.Err() != nil {
			return nil, errEnded
		}
		err := c.Do(context.Background(), "SET", key, value, "NX", "PX", b.lease.Milliseconds()).Err()
		if errors.Is(err, redis.Nil) && b.owner != "" && strings.HasPrefix(c.Get(ctx, key).Val(), value) {
			err = nil
			if b.flaw == joins {
				err = c.PExpire(ctx, key, b.lease).Err()
				defer func() { got = brokenLock{broken: b} }() // it has nothing to release
			}
		}
		if err == nil {
			votes++
		} else {
			failure = errors.Join(errHeld, err) // whatever it was
		}
	}
	if votes <= len(b.clients)/2 {
		return nil, failure // and nothing is undone
	}
	if ctx.Err() != nil {
		return nil, errEnded
	}
	until := stranded
	go func() { <-until }()
	token := b.clients[0].Incr(ctx, key+":token").Val()
	if b.flaw == renewsOn {
		go func() {
			for b.clients[0].Set(context.Background(), key, value, b.lease).Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}()
	}
	renewed, stop := context.WithCancel(context.Background())
	if b.flaw == takesBack {
		for _, c := range b.clients {
			go func() {
				for renewed.Err() == nil && c.Set(renewed, key, value, b.lease).Err() == nil {
					time.Sleep(b.lease / 3)
				}
			}()
		}
	}
	return brokenLock{b, key, token, stop}, nil
}

func (b broken) acquire(ctx context.Context, key string) (lock, error) {
	var released <-chan *redis.Message
	if b.flaw == listens {
		subscription := b.clients[0].Subscribe(ctx, key+":released")
		defer subscription.Close()
		if _, err := subscription.Receive(ctx); err != nil {
			return nil, err
		}
		released = subscription.Channel()
	}
	for {
		l, err := b.try(ctx, key)
		if !errors.Is(err, errHeld) {
			return l, err
		}
		var again <-chan time.Time
		if b.flaw == dozes {
			again = time.After(900 * time.Millisecond)
		} else if b.flaw == listens {
			b.clients[0].RPush(ctx, key+":listen", "")
		} else {
			again = time.After(5 * time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return nil, errEnded
		case <-released:
		case <-again:
		}
	}
}

func (b broken) close() {
	for _, c := range b.clients {
		_ = c.Close()
	}
}

type brokenLock struct {
	broken
	key   string
	fence int64
	stop  context.CancelFunc
}

func (l brokenLock) release(ctx context.Context) error {
	if l.key == "" {
		return nil
	}
	l.stop()
	sha := redis.NewScript(deleteScript).Hash()
	var failure error
	for _, c := range l.clients {
		n, err := c.EvalSha(ctx, sha, []string{l.key}).Int()
		if err == nil && n == 0 {
			err = errNotHeld
		}
		failure = errors.Join(failure, err)
		c.Publish(ctx, l.key+":released", "")
	}
	return failure
}

func (l brokenLock) lost() error { return nil }

func (l brokenLock) token() int64 { return l.fence }

// under puts the lock into the context, and write leaves those out that were released.
func (b broken) under(ctx context.Context, key string) (lock, context.Context, error) {
	l, err := b.try(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	outer, _ := ctx.Value(carriedKey{}).(*carried)
	c := &carried{brokenLock: l.(brokenLock), outer: outer}
	return c, context.WithValue(ctx, carriedKey{}, c), nil
}

func (b broken) write(ctx context.Context, db *sql.DB, statement string) error {
	held := context.Background()
	c, _ := ctx.Value(carriedKey{}).(*carried)
	for ; c != nil; c = c.outer {
		if !c.released {
			held = sqlfence.Mark{Resource: c.key, Token: c.fence}.In(held)
		}
	}
	return ours{}.write(held, db, statement)
}

type carriedKey struct{}

// carried is a lock in a context.
type carried struct {
	brokenLock
	outer    *carried
	released bool
}

func (c *carried) release(ctx context.Context) error {
	c.released = true
	return c.brokenLock.release(ctx)
}

// listening tells how many listen after a look, so that a scenario does not go on before.
type listening struct{ broken }

func (l listening) waiting(key string) int {
	return int(l.clients[0].LLen(context.Background(), key+":listen").Val())
}

// lined keeps a line in Redis, in which waiters that have gone keep their place.
type lined struct{ broken }

func (l lined) try(ctx context.Context, key string) (lock, error) {
	h, err := l.broken.try(ctx, key)
	if err != nil {
		return nil, err
	}
	return linedLock{h.(brokenLock)}, nil
}

func (l lined) acquire(ctx context.Context, key string) (lock, error) {
	if h, err := l.try(ctx, key); !errors.Is(err, errHeld) {
		return h, err
	}
	rdb, name := l.clients[0], rand.Text()
	if err := rdb.RPush(ctx, key+":line", name).Err(); err != nil {
		return nil, err
	}
	for rdb.Get(ctx, key).Val() != name {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	return linedLock{brokenLock{l.broken, key, 0, func() {}}}, nil
}

func (l lined) waiting(key string) int {
	return int(l.clients[0].LLen(context.Background(), key+":line").Val())
}

type linedLock struct{ brokenLock }

func (l linedLock) release(ctx context.Context) error {
	rdb := l.clients[0]
	pop := rdb.LPop
	if l.flaw == lastInLine {
		pop = rdb.RPop
	}
	next, err := pop(ctx, l.key+":line").Result()
	if errors.Is(err, redis.Nil) {
		return l.brokenLock.release(ctx)
	}
	if err != nil {
		return err
	}
	return rdb.Set(ctx, l.key, next, l.lease).Err()
}

// control is with which flaw a scenario is failed, and what it says of it.
type control struct {
	flaw flaw
	note string
}

// controls is how each scenario is failed.
var controls = map[string]control{
	"acquire-reply-lost":    {polls, "its own lost command wrote"},
	"acquire-abandoned":     {polls, "the key is still there"},
	"acquire-overtaken":     {polls, "the key is still there"},
	"hung-server-deadline":  {polls, "after its context ended"},
	"hung-server-cancel":    {polls, "after its context ended"},
	"context-error-hidden":  {polls, "does not match context.DeadlineExceeded"},
	"outage-as-held":        {polls, "held by somebody else"},
	"owner-by-prefix":       {polls, "worker-1 got the lock"},
	"scripts-flushed":       {polls, "NOSCRIPT"},
	"release-cancelled":     {polls, "the key is still there"},
	"release-of-another's":  {polls, "the other's key is gone"},
	"release-reply-lost":    {polls, "though it had been held"},
	"renewed-after-release": {renewsOn, "the "},
	"goroutines-left":       {polls, "after 20 locks"},
	"late-reply":            {polls, "it goes on"},
	"partition":             {polls, "it goes on"},
	"outage-survived":       {polls, "the key is gone"},
	"idle-commands":         {renewsOn, "with a lease of"},
	"flushed":               {polls, "the holder goes on"},
	"restarted-empty":       {polls, "the holder goes on"},
	"token-restarts":        {polls, "its writes are refused"},
	"inner-released":        {polls, "the late write is accepted"},
	"waiters-poll":          {polls, "commands per second and waiter"},
	"overtaken":             {lastInLine, "not in the order of arrival"},
	"wake-up-lost":          {listens, "it still waits"},
	"deleted-by-hand":       {listens, "it still waits"},
	"waiter-dies":           {firstInLine, "it still waits"},
	"waiter-gives-up":       {firstInLine, "its only waiter has given up"},
	"label-with-space":      {dozes, "hand-overs took"},
	"hangs-alive":           {takesBack, "it hangs and has the lock"},
	"shared-lease-left":     {joins, "the key is still there"},
	"address-moves":         {listens, "it still waits"},
	"redlock-one-hangs":     {polls, "not done after"},
	"redlock-not-undone":    {polls, "on the third master"},
	"redlock-abandoned":     {polls, "of 3"},
	"redlock-restarted":     {polls, "two hold the lock"},
	"redlock-revived":       {takesBack, "another is refused"},
}

// names is those of some scenarios.
func names(scenarios []scenario) []string {
	var all []string
	for _, s := range scenarios {
		all = append(all, s.name)
	}
	slices.Sort(all)
	return all
}
