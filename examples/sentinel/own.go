package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/redis/go-redis/v9"
)

// withOwnServers gives run a master, a replica and a Sentinel that end with it, if SENTINEL_ADDRS names none. It ends the
// master while run holds the lock, and ends run once the replica has taken the master's place.
func withOwnServers(run func(context.Context, io.Writer) error) func(context.Context, io.Writer) error {
	if os.Getenv("SENTINEL_ADDRS") != "" {
		return run
	}
	return func(ctx context.Context, out io.Writer) error {
		o, err := startSentinel(ctx)
		if err != nil {
			return err
		}
		defer o.stop()
		err = errors.Join(os.Setenv("SENTINEL_ADDRS", o.sentinel.Addr), os.Setenv("SENTINEL_MASTER", "main"))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		held, failedOver := make(chan struct{}, 1), make(chan error, 1)
		go func() {
			defer cancel()
			select {
			case <-held:
			case <-ctx.Done():
				failedOver <- nil
				return
			}
			err := o.failOver(ctx)
			if err == nil {
				fmt.Fprintln(out, "the master is gone, and the replica is the master")
			}
			failedOver <- err
		}()
		err = run(ctx, watch{out, held})
		cancel()
		return errors.Join(err, <-failedOver)
	}
}

// watch passes on what run prints, and reports when run holds the lock.
type watch struct {
	io.Writer
	held chan<- struct{}
}

func (w watch) Write(line []byte) (int, error) {
	if strings.HasPrefix(string(line), "held") {
		w.held <- struct{}{}
	}
	return w.Writer.Write(line)
}

// own is a master with a replica and a Sentinel that end with the program.
type own struct {
	master, replica, sentinel *backend.Server
	watch                     *redis.SentinelClient
}

func startSentinel(ctx context.Context) (_ *own, err error) {
	o := &own{}
	defer func() {
		if err != nil {
			o.stop()
		}
	}()
	if o.master, err = backend.StartServer(ctx); err != nil {
		return nil, err
	}
	host, port := o.master.HostPort()
	if o.replica, err = backend.StartServer(ctx, "--replicaof", host, port); err != nil {
		return nil, err
	}
	// The replica has to follow first. A Sentinel that has seen a replica without a link looks again only after 10 s.
	rdb := redis.NewClient(&redis.Options{Addr: o.replica.Addr})
	defer rdb.Close()
	err = backend.Until(ctx, func() error {
		info, err := rdb.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New("the replica does not follow:\n" + info)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if o.sentinel, err = backend.StartSentinel(ctx, o.master); err != nil {
		return nil, err
	}
	o.watch = redis.NewSentinelClient(&redis.Options{Addr: o.sentinel.Addr})
	return o, backend.Until(ctx, func() error {
		replicas, err := o.watch.Replicas(ctx, "main").Result()
		if err == nil && (len(replicas) != 1 || replicas[0]["master-link-status"] != "ok") {
			err = fmt.Errorf("the Sentinel does not see the replica: %v", replicas)
		}
		return err
	})
}

// failOver ends the master, and returns once the Sentinel has put the replica in its place.
func (o *own) failOver(ctx context.Context) error {
	o.master.Stop()
	return backend.Until(ctx, func() error {
		addr, err := o.watch.GetMasterAddrByName(ctx, "main").Result()
		host, port := o.replica.HostPort()
		if err == nil && (len(addr) != 2 || addr[0] != host || addr[1] != port) {
			err = fmt.Errorf("the master is still %v", addr)
		}
		return err
	})
}

func (o *own) stop() {
	if o.watch != nil {
		_ = o.watch.Close()
	}
	for _, s := range []*backend.Server{o.sentinel, o.replica, o.master} {
		if s != nil {
			s.Stop()
		}
	}
}
