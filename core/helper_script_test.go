package holdfast_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// The companions of the key k: its fence, the tombstone of the owner me, its line and the waiters in it.
const (
	fenceKey = "{k}:~fence"
	goneKey  = "{k}:~gone:me"
	lineKey  = "{k}:~line"
	waitKey  = "{k}:~wait"
	heldKey  = "{k}:~held"
)

// acquireArgs are those of an acquire of k that does not wait.
func acquireArgs(owner string, ttl int) []any {
	return []any{"k", fenceKey, goneKey, lineKey, waitKey, owner, fmt.Sprint(ttl, " ", ttl+60_000, " ", 1)}
}

// forgetArgs are those of a forget of k; the tombstone lives for tomb ms, 0 for none.
func forgetArgs(owner string, token any, tomb int) []any {
	return []any{"k", fenceKey, goneKey, lineKey, waitKey, owner, token, 60_000, tomb}
}

// scripted is a server that answers each script with one thing, whatever it is asked.
type scripted struct {
	replies map[string]any // by the script's name, "" for a claim
	port    int
}

func (s *scripted) client(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", 1+s.port), MaxRetries: -1})
	rdb.AddHook(s)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (s *scripted) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no connections here") }
}

func (s *scripted) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.answer(cmd) }
}

func (s *scripted) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			if err := s.answer(cmd); err != nil && first == nil {
				first = err
			}
		}
		return first
	}
}

func (s *scripted) answer(cmd redis.Cmder) error {
	var args []string
	for _, a := range cmd.Args() {
		text, _ := a.(string)
		args = append(args, text)
	}
	v, ok := s.replies[holdfast.ScriptName(args)]
	if err, is := v.(replyError); is {
		cmd.SetErr(err)
		return err
	}
	if v == nil {
		cmd.SetErr(redis.Nil)
		return redis.Nil
	}
	if c, can := cmd.(interface{ SetVal(any) }); ok && can {
		c.SetVal(v)
	}
	return nil
}

// shape is a reply of any form, as go-redis hands it over, made of bytes.
func shape(b *[]byte, depth int) any {
	next := func() byte {
		if len(*b) == 0 {
			return 0
		}
		c := (*b)[0]
		*b = (*b)[1:]
		return c
	}
	text := func() string {
		n := min(int(next()), len(*b))
		s := string((*b)[:n])
		*b = (*b)[n:]
		return s
	}
	switch kind := next(); kind % 10 {
	case 1:
		return int64(int8(next()))
	case 2:
		var n [8]byte
		*b = (*b)[copy(n[:], *b):]
		return int64(binary.BigEndian.Uint64(n[:]))
	case 3:
		return text()
	case 4:
		return replyError(text())
	case 5:
		return math.Float64frombits(uint64(next()) << 56)
	case 6:
		return next()%2 == 1
	case 7:
		if depth == 0 {
			return map[any]any{}
		}
		return map[any]any{text(): shape(b, depth-1)}
	case 8, 9:
		all := []any{}
		for n := next() % 8; n > 0 && depth > 0; n-- {
			all = append(all, shape(b, depth-1))
		}
		return all
	}
	return nil
}

// written is the bytes of a reply.
func written(v any) []byte {
	switch v := v.(type) {
	case int:
		return written(int64(v))
	case int64:
		return binary.BigEndian.AppendUint64([]byte{2}, uint64(v))
	case string:
		return append([]byte{3, byte(len(v))}, v...)
	case replyError:
		return append([]byte{4, byte(len(v))}, v...)
	case bool:
		return []byte{6, 1}
	case []any:
		all := []byte{8, byte(len(v))}
		for _, e := range v {
			all = append(all, written(e)...)
		}
		return all
	}
	return []byte{0}
}

// replyError is an error that a server replies with.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// typed checks that err is one of ours and matches one of among.
func typed(t *testing.T, act string, err error, among ...error) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "holdfast: ") && !strings.HasPrefix(err.Error(), "tick: ") || !isOf(err, among...) {
		t.Fatalf("%s: got %v, want one of %v", act, err, among)
	}
}
