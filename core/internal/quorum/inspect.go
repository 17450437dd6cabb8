package quorum

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// Inspect tells what most masters say of a lock.
func (q *Masters) Inspect(ctx context.Context, names protocol.Names, ttl time.Duration, _ redisconn.Batch) *redisconn.Call {
	sum := redisconn.NewSum(q.env)
	if err := q.Dependent(); err != nil {
		sum.Answer(nil, err)
		return sum
	}
	q.env.Go(func() {
		v := survey{need: q.need, left: len(q.all), lefts: map[string][]int64{}, tokens: map[string]int64{}}
		silence := q.ask(ctx, ttl, func(_ int, c *redisconn.Call) {
			c.Set(protocol.Inspect(c.Room[:0], &names))
		}, func(i int, c *redisconn.Call) bool {
			v.count(q.all[i].name, c)
			return v.decided
		})
		if silence != nil {
			v.errs, v.left = append(v.errs, silence), 0
			v.decide()
		}
		sum.Answer(v.val, v.err)
	})
	return sum
}

// survey collects the answers to inspect.
type survey struct {
	need, left     int
	answered       int
	lefts          map[string][]int64 // by the value of the lock, "" where it is free
	tokens         map[string]int64
	token, waiting int64
	errs           []error

	decided bool
	val     any
	err     error
}

func (v *survey) count(name string, c *redisconn.Call) {
	v.left--
	defer v.decide()
	r, ok := protocol.ReadInspected(c.Val)
	switch {
	case c.Err != nil:
		v.errs = append(v.errs, &memberError{name, c.Err})
		return
	case !ok:
		v.errs = append(v.errs, &memberError{name, protocol.ErrReply})
		return
	}
	v.answered++
	switch r.Left {
	case protocol.NoExpiry:
		r.Left = math.MaxInt64
	case protocol.Free:
		r.Value = ""
	}
	v.lefts[r.Value] = append(v.lefts[r.Value], r.Left)
	v.tokens[r.Value] = max(v.tokens[r.Value], r.Token) // others may have proposed larger ones, and lost
	v.token, v.waiting = max(v.token, r.Token), max(v.waiting, r.Waiting)
}

func (v *survey) decide() {
	most := 0
	v.decided = true
	for value, lefts := range v.lefts {
		if value == "" {
			continue
		}
		most = max(most, len(lefts))
		if len(lefts) >= v.need {
			slices.Sort(lefts)
			left := lefts[len(lefts)-v.need]
			if left == math.MaxInt64 {
				left = protocol.NoExpiry
			}
			v.val = protocol.Inspected{Value: value, Left: left, Token: v.tokens[value], Waiting: v.waiting}
			return
		}
	}
	switch {
	case v.answered >= v.need && most+v.left < v.need:
		v.val = protocol.Inspected{Left: protocol.Free, Token: v.token, Waiting: v.waiting}
	case v.left == 0 || v.answered+v.left < v.need:
		v.err = &Failure{all: v.errs, need: len(v.errs), Young: &Young{}}
	default:
		v.decided = false
	}
}
