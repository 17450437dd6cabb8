// Sentinel keeps a lock through a failover. The Redis replica that takes the master's place has the lock, because the
// acquisition waited for the replica to receive it.
//
//	go run ./examples/sentinel
//	SENTINEL_ADDRS=a:26379,b:26379,c:26379 SENTINEL_MASTER=mymaster go run ./examples/sentinel
//
// It holds the lock until Ctrl-C, and prints what happens to it while you fail over. Without SENTINEL_ADDRS, own.go in the
// same folder starts a master, a replica and a Sentinel, ends the master, and then ends the program. That needs a
// redis-server in PATH, because miniredis has no Sentinel.
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
	run := withOwnServers(run) // delete this line when you copy the file: it starts servers if SENTINEL_ADDRS is not set
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	// The client follows the master. Package redlock is not for Sentinel: its masters must be independent, and never fail over.
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    os.Getenv("SENTINEL_MASTER"),
		SentinelAddrs: strings.Split(os.Getenv("SENTINEL_ADDRS"), ","),
	})
	defer rdb.Close()
	locker, err := holdfast.New(rdb, holdfast.WithTrace(&holdfast.Trace{
		Renewed:   func(e holdfast.Event) { fmt.Fprintln(out, "renewed, token", e.Token) },
		NodeError: func(e holdfast.Event) { fmt.Fprintln(out, "no answer yet:", e.Err) },
		Ended:     func(e holdfast.Event) { fmt.Fprintln(out, "ended:", e.Err) },
	}))
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address, password or name of the master shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()

	// Replication is asynchronous, so a failover right after an acquisition could forget the lock. This acquisition waits until
	// a replica has it, or fails. That makes a loss rarer but does not rule it out: fence work that must not be done twice.
	lock, err := locker.Acquire(ctx, "report", holdfast.WithTTL(30*time.Second), holdfast.WithReplicaAcks(1, 20*time.Second))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "held, token", lock.Token())
	<-lock.Context(ctx).Done() // Ctrl-C, or a failover that lost the lock

	// The client might still be looking for the new master, so the release gets more time.
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := lock.Release(releasing); err != nil { // ErrLost: another holder might have worked at the same time
		return err
	}
	fmt.Fprintln(out, "released")
	return nil
}
