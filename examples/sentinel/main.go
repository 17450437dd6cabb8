// Sentinel keeps a lock over a failover: a replica takes the master's place, and has the lock, as the acquisition waited
// until it had.
//
//	go run ./examples/sentinel
//	SENTINEL_ADDRS=a:26379,b:26379,c:26379 SENTINEL_MASTER=mymaster go run ./examples/sentinel
//
// By default it starts a master, a replica and a Sentinel of its own and ends the master, which takes a redis-server in
// PATH, as miniredis has no Sentinel. With yours it holds the lock until Ctrl-C, and tells how it fares: you fail over.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	options := &redis.FailoverOptions{
		MasterName:    os.Getenv("SENTINEL_MASTER"),
		SentinelAddrs: strings.FieldsFunc(os.Getenv("SENTINEL_ADDRS"), func(r rune) bool { return r == ',' }),
	}
	var failOver func(context.Context) error
	if len(options.SentinelAddrs) == 0 {
		own, err := startSentinel(ctx)
		if err != nil {
			return err
		}
		defer own.stop()
		options.MasterName, options.SentinelAddrs = "main", []string{own.sentinel.Addr}
		failOver = own.failOver
	}
	// The client follows the master. NewRedLock is not for this: its masters must be independent, and never fail over.
	rdb := redis.NewFailoverClient(options)
	defer rdb.Close()
	locker, err := holdfast.New(rdb, holdfast.WithTrace(&holdfast.Trace{
		Renewed:   func(e holdfast.Event) { fmt.Fprintln(out, "renewed, token", e.Token) },
		NodeError: func(e holdfast.Event) { fmt.Fprintln(out, "no answer yet:", e.Err) },
		Lost:      func(e holdfast.Event) { fmt.Fprintln(out, "lost:", e.Err) },
	}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()

	// Replication is asynchronous: a failover right after an acquisition could forget it. So this one waits until a replica
	// has it, or fails. It makes that rarer and does not rule it out; work that must not be done twice needs the token.
	key := holdfast.Key("report", "daily")
	lock, err := locker.Acquire(ctx, key, holdfast.WithTTL(30*time.Second), holdfast.WithReplicaAcks(1, 20*time.Second))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "held, token", lock.Token())
	// By then ctx may have ended, and Release would not wait for an answer.
	releasing := context.WithoutCancel(ctx)
	if failOver == nil {
		<-lock.Context(ctx).Done() // Ctrl-C, or a failover that lost the lock
	} else {
		if err := failOver(ctx); err != nil {
			return errors.Join(err, lock.Release(releasing))
		}
		fmt.Fprintln(out, "the master is gone, and the replica is the master")
		if err := extend(ctx, lock); err != nil {
			return errors.Join(err, lock.Release(releasing))
		}
		fmt.Fprintln(out, "the new master has the lock")
	}
	if err := lock.Release(releasing); err != nil { // ErrLost if it was lost: the work may have been done beside another holder
		return err
	}
	fmt.Fprintln(out, "released")
	if failOver == nil {
		return nil
	}
	return locker.Do(ctx, key, func(ctx context.Context) error {
		fmt.Fprintln(out, "the next holder has a larger token:", holdfast.Held(ctx)[0].Token() > lock.Token())
		return nil
	})
}

// extend shows that the new master has the lock. A program has no need of it: renewals follow by themselves.
func extend(ctx context.Context, lock *holdfast.Lock) error {
	for {
		err := lock.Extend(ctx, 30*time.Second)
		if err == nil || lock.Err() != nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // the client still looks for the new master
	}
}
