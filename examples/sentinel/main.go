// Sentinel keeps a lock over a failover: a replica takes the master's place and has the lock, as the acquisition waited
// until it had.
//
//	go run ./examples/sentinel
//	SENTINEL_ADDRS=a:26379,b:26379,c:26379 SENTINEL_MASTER=mymaster go run ./examples/sentinel
//
// It holds the lock until Ctrl-C, and prints how it fares, while you fail over. Without SENTINEL_ADDRS own.go, beside this
// file, starts a master, a replica and a Sentinel, ends the master and then the program, which takes a redis-server in PATH,
// as miniredis has no Sentinel.
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
	run := withOwnServers(run) // delete this line when you copy the file: it starts servers where SENTINEL_ADDRS is not set
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	// The client follows the master. NewRedLock is not for this: its masters must be independent, and never fail over.
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    os.Getenv("SENTINEL_MASTER"),
		SentinelAddrs: strings.Split(os.Getenv("SENTINEL_ADDRS"), ","),
	})
	defer rdb.Close()
	locker, err := holdfast.New(rdb, holdfast.WithTrace(&holdfast.Trace{
		Renewed:   func(e holdfast.Event) { fmt.Fprintln(out, "renewed, token", e.Token) },
		NodeError: func(e holdfast.Event) { fmt.Fprintln(out, "no answer yet:", e.Err) },
		Lost:      func(e holdfast.Event) { fmt.Fprintln(out, "lost:", e.Err) },
	}))
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address, password or name of the master shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()

	// Replication is asynchronous: a failover right after an acquisition could forget it. So this one waits until a replica
	// has it, or fails. It makes that rarer and does not rule it out; work that must not be done twice needs the token.
	lock, err := locker.Acquire(ctx, "report", holdfast.WithTTL(30*time.Second), holdfast.WithReplicaAcks(1, 20*time.Second))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "held, token", lock.Token())
	<-lock.Context(ctx).Done() // Ctrl-C, or a failover that lost the lock

	// The client may still look for the new master, so that the release needs its time.
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := lock.Release(releasing); err != nil { // ErrLost: the work may have been done beside another holder
		return err
	}
	fmt.Fprintln(out, "released")
	return nil
}
