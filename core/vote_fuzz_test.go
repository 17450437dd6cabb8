package holdfast_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/redis/go-redis/v9"
)

// Three masters that answer with anything: two of them have to say so in the form of the script, and with one token,
// or there is no lock.
func FuzzVotes(f *testing.F) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() // of every bubble
	granted := []any{1, start, "run", start}
	seeds := []any{
		granted, []any{1, start, "", start + 1}, []any{1, start, "run", int64(math.MaxInt64)}, []any{1, start, "run", int64(math.MinInt64)}, []any{1, int64(math.MaxInt64), "run", start}, []any{1, "x", "run", start}, []any{1, start, 5, start},
		[]any{0, start, "", 70, "you", 10000}, []any{0, start, "", 70, "", -1}, []any{0, start, "", 70, "you", int64(9_300_000_000_000)}, []any{0, start, "", 70}, []any{0, start, "", 70, 5, "x"}, []any{0, start, "", int64(math.MaxInt64), "you", int64(math.MinInt64)},
		[]any{-1, start, "", 70}, []any{-2, start, "", 70}, []any{-3, start, "", start + 50}, []any{-3, start, "", int64(math.MaxInt64)}, []any{-3, start, "", int64(math.MinInt64)}, []any{-4, start, "", 70}, []any{-5, start, "other", 5000},
		[]any{-5, start, "", -1}, []any{-5, start, "", int64(math.MaxInt64)}, []any{9, start, "", 70}, []any{nil, nil, nil, nil}, []any{}, nil, "", 1, true, replyError("NOSCRIPT x"), replyError("ERR x"), replyError("LOADING x"),
	}
	fine := written(20_000)
	for i, s := range seeds {
		w := written(s)
		f.Add(w, w, w, w, w)
		f.Add(written(granted), written(granted), w, fine, written([]any{1, start, "run"}))
		f.Add(written(granted), w, written(seeds[(i+7)%len(seeds)]), fine, written([]any{"me", 10000, 70, 3}))
	}
	for _, s := range []any{[]any{0, start, "", 70, "who"}, []any{-1, start, ""}, []any{-2, int64(math.MinInt64), ""}, []any{"", -2, 70, 0}, []any{"me", -1, 70, 0}, []any{"me", int64(math.MaxInt64), int64(math.MinInt64), -1}, []any{1, start}, 1, 2, 3} {
		f.Add(written(granted), written(granted), written(granted), written(s), written(s))
	}
	f.Fuzz(func(t *testing.T, one, two, three, sustain, others []byte) {
		synctest.Test(t, func(t *testing.T) {
			renewal, other := shape(&sustain, 2), shape(&others, 2)
			var clients []*redis.Client
			var votes []any
			for i, b := range []*[]byte{&one, &two, &three} {
				vote := shape(b, 2)
				votes = append(votes, vote)
				s := &scripted{port: i, replies: map[string]any{"vote": vote, "sustain": renewal, "yield": other, "tick": other, "withdraw": other, "inspect": other}}
				clients = append(clients, s.client(t))
			}
			l, err := redlock.New(clients)
			if err != nil {
				t.Fatal(err)
			}
			lock, err := l.TryAcquire(background, "k")
			if err != nil {
				typed(t, "TryAcquire", err, holdfast.ErrNotAcquired, holdfast.ErrUnavailable)
			} else {
				favour := 0
				for _, v := range votes {
					if r, _ := v.([]any); len(r) >= 4 && r[0] == int64(1) && r[3] == lock.Token() {
						favour++
					}
				}
				if favour < 2 || lock.Token() <= 0 || lock.Token() >= 1<<53 {
					t.Fatalf("token %d by %v", lock.Token(), votes)
				}
				if err := lock.Extend(background, 20*time.Second); err != nil {
					typed(t, "Extend", err, holdfast.ErrLost, holdfast.ErrUnavailable)
				}
				time.Sleep(20 * time.Second)
				if _, ok := renewal.(int64); !ok && lock.Err() == nil {
					t.Fatalf("held without a renewal, replies %v", renewal)
				}
				if err := lock.Release(background); err != nil {
					typed(t, "Release", err, holdfast.ErrLost, holdfast.ErrUnavailable)
				}
			}
			if won, err := tick.Claim(background, l, "k", time.Now()); err != nil {
				typed(t, "Claim", err, tick.ErrWindow, holdfast.ErrUnavailable)
			} else if r, _ := other.([]any); won && (len(r) < 3 || r[0] != int64(1)) || !won && len(r) != 5 {
				t.Fatalf("Claim: %v by %v", won, other)
			}
			if state, err := l.Inspect(background, "k"); err != nil {
				typed(t, "Inspect", err, holdfast.ErrUnavailable)
			} else if r, _ := other.([]any); len(r) != 4 || state.TimeLeft < 0 {
				t.Fatalf("Inspect: %+v by %v", state, other)
			}
			shutdown(t, l)
		})
	})
}
