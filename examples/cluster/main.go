// Cluster takes locks in a Redis Cluster, on whichever node has their slots, and writes data in the slot of its lock.
//
//	go run ./examples/cluster
//	REDIS_ADDRS=a:6379,b:6379,c:6379 go run ./examples/cluster
//
// It prints which node has each lock. REDIS_ADDRS are some of the nodes. Without it own.go, beside this file, starts a
// Cluster of three, which takes a redis-server in PATH, as miniredis has one node only.
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
	run := withOwnServers(run) // delete this line when you copy the file: it starts a Cluster where REDIS_ADDRS is not set
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	// The nodes of a Cluster are no masters for NewRedLock: each has other slots, and they fail over.
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

	// What holdfast keeps of a lock is in one slot, whatever its name: nothing is to be done for that.
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

	// Data that is written by a script or a transaction together with others has to be in one slot with them. A hash tag in
	// the name of the lock, {cart:7}, brings it there too. Key makes no braces, so that no user input can.
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
