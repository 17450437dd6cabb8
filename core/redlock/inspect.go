package redlock

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// Inspect returns what most masters say about each of several locks. It waits for all masters, even if a majority has
// answered: so sweep learns which masters hang, and the next call does not wait for them again.
func (q *masters) Inspect(ctx context.Context, ask protocol.Question, names []protocol.Names, ttl time.Duration, sweep *redisconn.Sweep) []*redisconn.Call {
	out, all := make([]*redisconn.Call, len(names)), []*redisconn.Call(nil)
	for i := range names {
		out[i] = &redisconn.Call{Err: q.dependent()}
		for range q.all {
			c := new(redisconn.Call)
			all = append(all, c.Set(ask(c.Buf[:0], &names[i])))
		}
	}
	if q.dependent() != nil {
		return out
	}
	sweep.Ask(ctx, q.env, q.patience(ttl), all, func(i int) *redisconn.Conn { return q.all[i%len(q.all)].Conn })
	for i, sum := range out {
		v := survey{need: q.need, lefts: map[string][]int64{}, tokens: map[string]int64{}}
		for k, m := range q.all {
			v.count(m.name, all[i*len(q.all)+k])
		}
		sum.Val, sum.Err = v.verdict()
	}
	return out
}

// survey collects the masters' answers about one lock.
type survey struct {
	need           int
	answered       int
	lefts          map[string][]int64 // by the value of the lock, "" if it is free
	tokens         map[string]int64
	token, waiting int64
	errs           []error
}

func (v *survey) count(name string, c *redisconn.Call) {
	if c.Val == nil && c.Err == nil {
		v.errs = append(v.errs, &memberError{name, redisconn.ErrSilence})
		return
	}
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
	v.tokens[r.Value] = max(v.tokens[r.Value], r.Token) // other clients may have proposed larger ones, and lost
	v.token, v.waiting = max(v.token, r.Token), max(v.waiting, r.Waiting)
}

// verdict returns what most masters say.
func (v *survey) verdict() (any, error) {
	for value, lefts := range v.lefts {
		if value != "" && len(lefts) >= v.need {
			slices.Sort(lefts)
			left := lefts[len(lefts)-v.need]
			if left == math.MaxInt64 {
				left = protocol.NoExpiry
			}
			return protocol.Inspected{Value: value, Left: left, Token: v.tokens[value], Waiting: v.waiting}, nil
		}
	}
	if v.answered >= v.need {
		return protocol.Inspected{Left: protocol.Free, Token: v.token, Waiting: v.waiting}, nil
	}
	return nil, &failure{all: v.errs, need: len(v.errs)}
}
