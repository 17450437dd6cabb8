package asynqlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// As asynq's own Scheduler does.
const listEvery = 10 * time.Second

// list keeps the entries where the Inspector finds them, until ctx ends. What fails is tried again by the next turn.
func (s *Scheduler) list(ctx context.Context) {
	host, _ := os.Hostname()
	key := entriesKey(fmt.Sprintf("%s:%d:%s", host, os.Getpid(), rand.Text()))
	turn := time.NewTicker(s.listEvery)
	defer turn.Stop()
	for {
		s.redis.ZAdd(ctx, schedulersKey, redis.Z{Score: float64(time.Now().Add(2 * s.listEvery).Unix()), Member: key})
		_, _ = s.redis.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, key)
			for _, e := range s.cron.Entries() {
				if own, ok := e.Job.(*entry); ok {
					p.LPush(ctx, key, own.listed(e.Next, e.Prev))
				}
			}
			p.Expire(ctx, key, 2*s.listEvery)
			return nil
		})
		select {
		case <-turn.C:
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
			defer cancel()
			s.redis.ZRem(ctx, schedulersKey, key)
			s.redis.Del(ctx, key)
			return
		}
	}
}
