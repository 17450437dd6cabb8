package main

import (
	"fmt"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/redis/go-redis/v9"
)

// masters are the clients of one Redis, or of several independent masters, see package redlock.
type masters []redis.UniversalClient

func (m masters) close() {
	for _, client := range m {
		_ = client.Close()
	}
}

// name tells a master from the others. It is empty for the only one.
func (m masters) name(i int) string {
	if len(m) == 1 {
		return ""
	}
	if client, ok := m[i].(*redis.Client); ok {
		return client.Options().Addr
	}
	return fmt.Sprint("master ", i+1)
}

// locker takes locks on all of them.
func (m masters) locker(opts ...holdfast.Option) (*holdfast.Locker, error) {
	if len(m) == 1 {
		return holdfast.New(m[0], opts...)
	}
	var clients []*redis.Client
	for _, client := range m {
		one, ok := client.(*redis.Client)
		if !ok {
			return nil, &exit{statusUsage, "of several masters, each is a single server, and none a Cluster"}
		}
		clients = append(clients, one)
	}
	return redlock.New(clients, opts...)
}
