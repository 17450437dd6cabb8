package redisconn

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// noted is a cleanup that notes whether it was given up.
type noted struct {
	Schedule
	dropped bool
}

func (*noted) Begin(*Call) bool  { return true }
func (*noted) End(*Call) bool    { return true }
func (*noted) Unheard()          {}
func (u *noted) Drop()           { u.dropped = true }
func (u *noted) When() *Schedule { return &u.Schedule }

// While the server is silent, cleanups are given up once there are too many, the oldest first: their leases end first.
func TestTheOldestCleanupsAreGivenUp(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	n := New(rdb, timing.NewEnv())
	s := n.only
	s.busy, s.cleaner.away = 1, 1 // and nothing has been heard for an hour
	s.heard.Store(int64(-time.Hour))
	var all []*noted
	for i := range CleanMost + 10 {
		u := &noted{}
		u.Until, u.Patience = time.Hour+time.Duration(CleanMost-i), time.Second // whatever their leases are
		all = append(all, u)
		n.Clean("k", u, false)
	}
	for i, u := range all {
		if u.dropped != (i < 10) {
			t.Fatalf("cleanup %d of %d: given up %v", i, len(all), u.dropped)
		}
	}
}
