package redlock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
	"github.com/redis/go-redis/v9"
)

// Two clients of one server are found out also where their first answers come together.
func TestTwinsThatAnswerTogether(t *testing.T) {
	clients := make([]*redis.Client, 3)
	for i := range clients {
		clients[i] = redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", i+1)})
		defer clients[i].Close()
	}
	for range 3000 {
		env := timing.NewEnv()
		q := newMasters(clients, env, config{quarantine: time.Minute})
		var all sync.WaitGroup
		for _, m := range q.all[:2] {
			all.Go(func() {
				q.observe(m, &redisconn.Call{At: env.Now(), Val: []any{int64(protocol.VoteGranted), time.Now().UnixMicro(), "run", int64(1)}})
			})
		}
		all.Wait()
		if q.dependent() == nil {
			t.Fatal("not found out")
		}
	}
}
