// Cluster takes locks in a Redis Cluster, on the nodes that have their slots, and writes data in the slot of its lock.
//
//	go run ./examples/cluster
//	REDIS_ADDRS=a:6379,b:6379,c:6379 go run ./examples/cluster
//
// It prints which node has each lock. REDIS_ADDRS names some of the nodes. Without it, own.go in the same folder starts a
// Cluster of three nodes. That needs a redis-server in PATH, because miniredis has only one node.
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
	run := withOwnServers(run) // delete this line when you copy the file: it starts a Cluster if REDIS_ADDRS is not set
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	// The nodes of a Cluster cannot be masters of package redlock: each has different slots, and they fail over.
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(os.Getenv("REDIS_ADDRS"), ",")})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()

	// All keys that holdfast keeps for a lock are in one slot, whatever its name. You need not do anything for that.
	for i := range 6 {
		key := holdfast.Key("order", fmt.Sprint(i))
		err := locker.Do(ctx, key, func(ctx context.Context) error {
			node, err := rdb.MasterForKey(ctx, key)
			if err == nil {
				fmt.Fprintf(out, "%s is held on %s\n", key, node.Options().Addr)
			}
			return err
		})
		if err != nil {
			return err
		}
	}

	// Data that one script or transaction writes together has to be in one slot. A hash tag in the name of the lock, {cart:7},
	// puts the lock there too. Key itself makes no braces, so user input cannot choose a slot.
	tag := "{" + holdfast.Key("cart", "7") + "}"
	return locker.Do(ctx, tag, func(ctx context.Context) error {
		_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HIncrBy(ctx, tag+":items", "apple", 1)
			p.Expire(ctx, tag+":items", time.Hour)
			return nil
		})
		if err != nil {
			return err
		}
		lock, items := rdb.ClusterKeySlot(ctx, holdfast.Held(ctx)[0].Key()), rdb.ClusterKeySlot(ctx, tag+":items")
		fmt.Fprintln(out, "the cart and its lock are in one slot:", lock.Val() == items.Val())
		return errors.Join(lock.Err(), items.Err())
	})
}
