package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/redis/go-redis/v9"
)

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
	// First the replica has to follow: a Sentinel that has seen it not to looks again in 10 s.
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

// failOver ends the master, and returns when the Sentinel has put the replica in its place.
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
