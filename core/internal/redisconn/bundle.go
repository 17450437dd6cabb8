package redisconn

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// apartFor is for how long calls go by themselves after the server refused a bundle, which it may do to one where it serves
// each of its calls: keys of several slots, or one that an ACL forbids.
const apartFor = 10 * time.Second

// newFor is for how long acquires go by themselves after most of those in a bundle had to: where keys are used once, each is
// new to the server.
const newFor = 100 * time.Millisecond

// bundled sends those of calls that can be in one script call, which costs the server half of what a pipeline of them does, and
// answers those that this settles. It returns the rest, which are as if they had not been sent.
//
// Where no answer comes each of them may have been carried out, as with a pipeline. An error reply that is harmless came
// before anything was done. Any other may be a proxy's, which takes no keys of several servers, or come from the middle of
// the script: each of the calls is unknown then, and its caller asks again, by itself.
func (n *Conn) bundled(calls []*Call) (rest []*Call) {
	now := n.Env.Now().Mono
	if now < time.Duration(n.apart.Load()) {
		return calls
	}
	var by [3][]*Call
	for _, c := range calls {
		kind := protocol.KindOf(c.script, c.Args)
		if kind == protocol.Takes && now < time.Duration(n.fresh.Load()) {
			kind = protocol.Apart
		}
		by[kind] = append(by[kind], c)
	}
	forgets, takes := by[protocol.Forgets], by[protocol.Takes]
	if len(forgets)+len(takes) < 2 {
		return calls
	}
	b := &Call{Ctx: context.Background()}
	b.Set(protocol.Bundle(argsOf(forgets), argsOf(takes)))
	val, err := n.Run(b)
	if text := ReplyText(err); text != "" {
		n.apart.Store(int64(n.Env.Now().Mono + apartFor))
		if Harmless(err) {
			return calls
		}
		err = fmt.Errorf("several locks in one command: %s", text) // no reply to one call, which could be for good
	}
	together := append(forgets, takes...)
	replies, ok := protocol.ReadBundle(val, len(together))
	if err == nil && !ok {
		err = protocol.ErrReply
	}
	rest = by[protocol.Apart]
	left := 0 // acquires
	for i, c := range together {
		switch {
		case err != nil:
			n.answer(c, nil, err)
		case replies[i] == nil:
			rest = append(rest, c)
			if i >= len(forgets) {
				left++
			}
		default:
			n.answer(c, replies[i], nil)
		}
	}
	if 2*left > len(takes) {
		n.fresh.Store(int64(n.Env.Now().Mono + newFor))
	}
	return slices.DeleteFunc(rest, n.drop)
}

func argsOf(calls []*Call) [][]any {
	all := make([][]any, len(calls))
	for i, c := range calls {
		all[i] = c.Args
	}
	return all
}
