package core_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

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
	v, ok := s.replies[core.ScriptName(args)]
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

// refusal is what a well-formed answer that the lock is held says, or ok is false.
func refusal(v any) (left int64, ok bool) {
	r, _ := v.([]any)
	if len(r) != 7 || r[0] != int64(0) {
		return 0, false
	}
	left, ok = r[1].(int64)
	for i, like := range []any{"", int64(0), int64(0), "", int64(0)} {
		switch like.(type) {
		case string:
			_, is := r[2+i].(string)
			ok = ok && is
		case int64:
			_, is := r[2+i].(int64)
			ok = ok && is
		}
	}
	return left, ok
}

func typed(t *testing.T, act string, err error, among ...error) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "holdfast: ") || !slices.ContainsFunc(among, func(is error) bool { return errors.Is(err, is) }) {
		t.Fatalf("%s: got %v, want one of %v", act, err, among)
	}
}

// Whatever a server answers, a call returns, with what was said where it has the form that the script gives it, and else
// with an error of the package.
func FuzzReplies(f *testing.F) {
	seeds := []any{
		0, 1, 2, 3, -1, -2, 1 << 52, math.MaxInt64, math.MinInt64, "", "1", nil, true, replyError("ERR x"), replyError("NOSCRIPT x"), replyError("WRONGTYPE x"), replyError(""), replyError("OOM x"),
		[]any{}, []any{0}, []any{0, 10000, "you", 0, 1_700_000_000_000_000, "70 70 50", 0}, []any{0, -1, "you", 1, 1, "", 1}, []any{0, math.MaxInt64, "you", 2, 1, "70 0 50", 2}, []any{0, math.MinInt64, "", math.MaxInt64, math.MinInt64, "99999999999999999999", math.MaxInt64},
		[]any{0, "1", "you", 0, 1, "", 0}, []any{"0", 1, "you", 0, 1, "", 0}, []any{0, 9_300_000_000_000, "AAAAAAAAAAAAAAAAAAAAAA:label", 0, 1, "", 0}, []any{0, 1, "you", 1, 1, "", nil}, []any{nil, nil, nil, nil, nil, nil, nil},
		[]any{"", -2, 70, 0}, []any{"me", 10000, 70, 3}, []any{"me", -1, 70, -3}, []any{"me", 9_300_000_000_000, 70, math.MaxInt64}, []any{1, 2, 3, 4}, []any{"a", "b", "c", "d"}, []any{nil, nil, nil, nil},
		[]any{-1, 1_700_000_000_000_000}, []any{-2, 1}, []any{-3, 1}, []any{"-1", 1}, []any{-1, math.MinInt64}, 7, -7,
	}
	for _, s := range seeds {
		w := written(s)
		f.Add(w, w, w, w, w)
		f.Add(written(70), w, w, w, w)
		f.Add(written(70), written(1), w, w, w)
		f.Add(written(70), w, written(20_000), w, w)
	}
	f.Fuzz(func(t *testing.T, acquire, forget, renew, inspect, claim []byte) {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{replies: map[string]any{
				"acquire": shape(&acquire, 2), "forget": shape(&forget, 2), "renew": shape(&renew, 2), "inspect": shape(&inspect, 2), "claim": shape(&claim, 2),
			}}
			l := newLocker(t, s.client(t))
			lock, err := l.TryAcquire(background, "k")
			left, held := refusal(s.replies["acquire"])
			token, _ := s.replies["acquire"].(int64)
			var is *core.HeldError
			switch {
			case token > 0:
				if err != nil || lock.Token() != token {
					t.Fatalf("acquire %v: got %v, %v", token, lock, err)
				}
				s.hold(t, lock)
			case held:
				typed(t, "TryAcquire", err, core.ErrNotAcquired)
				if !errors.As(err, &is) || (left < 0) != (is.TimeLeft == 0) || left >= 0 && is.TimeLeft < time.Millisecond {
					t.Fatalf("held, %d ms left: got %+v", left, is)
				}
			default:
				typed(t, "TryAcquire", err, core.ErrUnavailable)
			}
			s.inspect(t, l)
			s.claim(t, l)
			shutdown(t, l)
		})
	})
}

// hold does what one does with a lock.
func (s *scripted) hold(t *testing.T, lock *core.Lock) {
	t.Helper()
	err := lock.Extend(background, 40*time.Second)
	left, ok := s.replies["renew"].(int64)
	switch {
	case !ok:
		typed(t, "Extend", err, core.ErrUnavailable, core.ErrLost) // it was asked until the lease was over
	case left == 0:
		typed(t, "Extend", err, core.ErrLost)
	case left >= 40_000:
		if err != nil || !lock.Deadline().After(time.Now().Add(30*time.Second)) {
			t.Fatalf("extended by %d ms: %v, deadline %v from now", left, err, time.Until(lock.Deadline()))
		}
	case err != nil:
		typed(t, "Extend", err, core.ErrLost, core.ErrUnavailable)
	}
	time.Sleep(20 * time.Second) // some renewals
	if alive := lock.Err() == nil; alive && !ok {
		t.Fatalf("held without a renewal, replies %v", s.replies["renew"])
	}
	lost := lock.Err()
	if lost != nil {
		typed(t, "Err", lost, core.ErrLost)
	}
	err = lock.Release(background)
	if err == nil && s.replies["forget"] != int64(1) && s.replies["forget"] != int64(2) {
		t.Fatalf("released by %v", s.replies["forget"])
	}
	if err != nil {
		typed(t, "Release", err, core.ErrLost, core.ErrUnavailable)
	}
}

func (s *scripted) inspect(t *testing.T, l *core.Locker) {
	t.Helper()
	state, err := l.Inspect(background, "k")
	r, _ := s.replies["inspect"].([]any)
	var ok [4]bool
	var left, token, waiting int64
	if len(r) == 4 {
		_, ok[0] = r[0].(string)
		left, ok[1] = r[1].(int64)
		token, ok[2] = r[2].(int64)
		waiting, ok[3] = r[3].(int64)
	}
	if ok != [4]bool{true, true, true, true} {
		typed(t, "Inspect", err, core.ErrUnavailable)
		return
	}
	if err != nil || state.Held != (left != -2) || state.Token != token || state.Waiting != int(waiting) || (left > 0) != (state.TimeLeft > 0) || state.TimeLeft < 0 {
		t.Fatalf("Inspect of %v: got %+v, %v", r, state, err)
	}
}

func (s *scripted) claim(t *testing.T, l *core.Locker) {
	t.Helper()
	won, err := l.Claim(background, "k", time.Now())
	v := s.replies["claim"]
	if r, _ := v.([]any); len(r) == 2 && (r[0] == int64(-1) || r[0] == int64(-2)) {
		if _, ok := r[1].(int64); ok {
			typed(t, "Claim", err, core.ErrTick)
			return
		}
	}
	switch v {
	case int64(0), int64(1), int64(2):
		if err != nil || won != (v == int64(1)) {
			t.Fatalf("Claim, answered %v: got %v, %v", v, won, err)
		}
	default:
		if typed(t, "Claim", err, core.ErrUnavailable); won {
			t.Fatalf("Claim, answered %v: true beside %v", v, err)
		}
	}
}
