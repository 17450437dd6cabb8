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

// withOwnServers gives run a Cluster that ends with it, if REDIS_ADDRS names none.
func withOwnServers(run func(context.Context, io.Writer) error) func(context.Context, io.Writer) error {
	if os.Getenv("REDIS_ADDRS") != "" {
		return run
	}
	return func(ctx context.Context, out io.Writer) error {
		nodes, err := startCluster(ctx)
		if err != nil {
			return err
		}
		var addrs []string
		for _, node := range nodes {
			defer node.Stop()
			addrs = append(addrs, node.Addr)
		}
		if err := os.Setenv("REDIS_ADDRS", strings.Join(addrs, ",")); err != nil {
			return err
		}
		return run(ctx, out)
	}
}

// startCluster makes three nodes share the slots, like "redis-cli --cluster create".
func startCluster(ctx context.Context) (nodes []*backend.Server, err error) {
	const slots, n = 16384, 3
	defer func() {
		if err != nil {
			for _, node := range nodes {
				node.Stop()
			}
		}
	}()
	var clients []*redis.Client
	for i := range n {
		node, err := backend.StartServer(ctx, "--cluster-enabled", "yes")
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, node)
		rdb := redis.NewClient(&redis.Options{Addr: node.Addr})
		defer rdb.Close()
		clients = append(clients, rdb)
		err = errors.Join(
			rdb.ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err(),
			rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		if err != nil {
			return nodes, err
		}
	}
	for _, rdb := range clients {
		err := backend.Until(ctx, func() error {
			info, err := rdb.ClusterInfo(ctx).Result()
			if err != nil || strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n)) {
				return err
			}
			// Repeat it, because a node forgets a handshake that takes too long.
			for _, node := range nodes {
				host, port := node.HostPort()
				_ = rdb.ClusterMeet(ctx, host, port).Err()
			}
			return errors.New("the cluster is not whole:\n" + info)
		})
		if err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}
