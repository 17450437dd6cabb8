// Cluster takes locks in a Redis Cluster, on whichever node has their slots.
//
//	go run ./examples/cluster
//	REDIS_ADDRS=a:6379,b:6379,c:6379 go run ./examples/cluster
//
// By default it starts a Cluster of three nodes, which takes a redis-server in PATH, as miniredis has one node only.
// Of yours it needs some of the addresses.
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
	addrs := strings.FieldsFunc(os.Getenv("REDIS_ADDRS"), func(r rune) bool { return r == ',' })
	if len(addrs) == 0 {
		nodes, err := startCluster(ctx)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			defer node.Stop()
			addrs = append(addrs, node.Addr)
		}
	}
	// The nodes of a Cluster are no masters for NewRedLock: each has other slots, and they fail over.
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer rdb.Close()
	here, err := holdfast.New(rdb, holdfast.WithLabel("replica 1"))
	if err != nil {
		return err
	}
	there, err := holdfast.New(rdb, holdfast.WithLabel("replica 2"))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, here.Shutdown(ctx), there.Shutdown(ctx))
	}()

	// What holdfast keeps of a lock is in one slot, whatever its name: nothing is to be done for that.
	for i := range 6 {
		key := holdfast.Key("order", fmt.Sprint(i))
		// Within the function its own context is the one to use, but for what plays the other replica.
		err := here.Do(ctx, key, func(locked context.Context) error {
			node, err := rdb.MasterForKey(locked, key)
			if err != nil {
				return err
			}
			_, err = there.TryAcquire(ctx, key)
			var held *holdfast.HeldError
			if !errors.As(err, &held) {
				return fmt.Errorf("two holders of %s: %v", key, err)
			}
			fmt.Fprintf(out, "%s is held on %s by %s\n", key, node.Options().Addr, held.Label)
			return nil
		})
		if err != nil {
			return err
		}
	}

	// Data that is written by a script or a transaction together with others has to be in one slot with them. A hash tag in
	// the name of the lock, {cart:7}, brings it there too. Key makes no braces, so that no user input can.
	tag := "{" + holdfast.Key("cart", "7") + "}"
	return here.Do(ctx, tag, func(ctx context.Context) error {
		_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HIncrBy(ctx, tag+":items", "apple", 1)
			p.Expire(ctx, tag+":items", time.Hour)
			return nil
		})
		if err != nil {
			return err
		}
		lock, items := rdb.ClusterKeySlot(ctx, holdfast.Held(ctx)[0].Key()), rdb.ClusterKeySlot(ctx, tag+":items")
		if err := errors.Join(lock.Err(), items.Err()); err != nil {
			return err
		}
		fmt.Fprintln(out, "the cart and its lock are in one slot:", lock.Val() == items.Val())
		return nil
	})
}
