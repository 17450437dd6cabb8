package main

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// peerClient is go-redis as it serves a lock best: by default it does not heed the deadlines of contexts, and its
// timeouts may be longer than the lease.
func peerClient(addr string, lease time.Duration) *redis.Client {
	timeout := timeoutFor(lease)
	return redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: timeout, WriteTimeout: timeout,
	})
}

// timeoutFor is a client's timeout in proportion to a lease that is far shorter than a real one: 3 s, go-redis' default,
// for 30 s. Less than 250 ms would fail on a loaded machine for that alone.
func timeoutFor(lease time.Duration) time.Duration {
	return max(min(lease/10, 3*time.Second), 250*time.Millisecond)
}
