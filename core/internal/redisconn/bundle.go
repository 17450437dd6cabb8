package redisconn

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// apartFor is how long calls go separately after the server refused a bundle. A server may refuse a bundle although it
// would serve each of its calls: if the keys are in several slots, or if an ACL forbids one of them.
const apartFor = 10 * time.Second

// newFor is how long acquires go separately after most of those in a bundle had to: if each key is used once, every key
// is new to the server.
const newFor = 100 * time.Millisecond

// bundled sends the calls that can share one script call, which costs the server half as much as a pipeline of them. It
// answers the calls that this settles, and returns the rest, which are as if they had not been sent.
//
// If no answer comes, each of the bundled calls may have been carried out, as with a pipeline. A harmless error reply
// came before anything was done. Any other error reply may be from a proxy, which accepts no keys of several servers,
// or from the middle of the script. Then the outcome of each call is unknown, and its caller asks again, separately.
func (l *lane) bundled(calls []*Call) (rest []*Call) {
	s := l.server
	n := s.conn
	now := n.Env.Now().Mono
	if now < time.Duration(s.apart.Load()) {
		return calls
	}
	var by [3][]*Call
	for _, c := range calls {
		kind := protocol.KindOf(c.script, c.Args)
		if kind == protocol.Takes && now < time.Duration(s.fresh.Load()) {
			kind = protocol.Apart
		}
		by[kind] = append(by[kind], c)
	}
	forgets, takes := by[protocol.Forgets], by[protocol.Takes]
	if len(forgets)+len(takes) < 2 {
		return calls
	}
	b := &Call{Ctx: context.Background()}
	b.within.Context = b.Ctx
	b.Set(protocol.Bundle(argsOf(forgets), argsOf(takes)))
	val, err := n.one(l.driver(), b)
	if l.home {
		s.home.judge(err)
	}
	if text := ReplyText(err); text != "" {
		s.apart.Store(int64(n.Env.Now().Mono + apartFor))
		if Harmless(err) {
			return calls
		}
		err = fmt.Errorf("several locks in one command: %s", text) // not a reply to one of the calls, which could be permanent
	}
	together := append(forgets, takes...)
	replies, ok := protocol.ReadBundle(val, len(together))
	if err == nil && !ok {
		err = protocol.ErrReply
	}
	rest = by[protocol.Apart]
	left := 0 // acquires that have to go separately
	for i, c := range together {
		switch {
		case err != nil:
			l.answer(c, nil, err)
		case replies[i] == nil:
			c.waited = true
			rest = append(rest, c)
			if i >= len(forgets) {
				left++
			}
		default:
			l.answer(c, replies[i], nil)
		}
	}
	if 2*left > len(takes) {
		s.fresh.Store(int64(n.Env.Now().Mono + newFor))
	}
	return slices.DeleteFunc(rest, s.drop)
}

func argsOf(calls []*Call) [][]any {
	all := make([][]any, len(calls))
	for i, c := range calls {
		all[i] = c.Args
	}
	return all
}
