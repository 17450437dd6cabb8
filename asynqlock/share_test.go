package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

var byTenant = asynqlock.WithShare(asynqlock.Field("tenant"))

// payOf is a task of an account and a tenant, or of no tenant.
func payOf(tenant string) *asynq.Task {
	if tenant == "" {
		return pay(42)
	}
	return asynq.NewTask("pay", fmt.Appendf(nil, `{"account": 42, "tenant": %q}`, tenant))
}

// Behind many tasks of one tenant, one of another tenant, or of none, runs after two holds, whether they are deferred or wait in
// their workers; or after three, as tasks that are woken at the same time race for the places.
func TestShareOfATenant(t *testing.T) {
	const hold = 500 * time.Millisecond
	for name, c := range map[string]struct {
		limit   int
		policy  asynqlock.Policy
		small   string
		workers int
		opts    []asynq.Option
	}{
		"deferred":        {1, asynqlock.Defer(), "small", 10, nil},
		"with a limit":    {3, asynqlock.Defer(), "small", 10, nil},
		"two workers":     {1, asynqlock.Defer(), "small", 2, nil},
		"without retries": {3, asynqlock.Defer(), "small", 10, []asynq.Option{asynq.MaxRetry(0)}},
		"of no tenant":    {3, asynqlock.Defer(), "", 10, nil},
		"waiting":         {3, asynqlock.Wait(time.Hour), "small", 200, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				burst := 50 * c.limit
				g := s.guard(s.locker(), asynqlock.WithLimit(c.limit), byTenant, asynqlock.WithBusy(c.policy))
				var mu sync.Mutex
				began := map[string]time.Time{}
				s.serve(g, func(ctx context.Context, task *asynq.Task) error {
					id, _ := asynq.GetTaskID(ctx)
					mu.Lock()
					began[id] = time.Now()
					mu.Unlock()
					time.Sleep(hold)
					return nil
				}, func(cfg *asynq.Config) { cfg.Concurrency, cfg.TaskCheckInterval = c.workers, 10*time.Millisecond })
				for range burst {
					s.enqueue(payOf("big"), c.opts...)
				}
				time.Sleep(5 * time.Second)
				all := time.Duration(0)
				for i := range 4 {
					sent, id := time.Now(), fmt.Sprint("small", i)
					s.enqueue(payOf(c.small), append(c.opts, asynq.TaskID(id))...)
					var took time.Duration
					s.until("its run", func() bool {
						mu.Lock()
						defer mu.Unlock()
						took = began[id].Sub(sent)
						return took > 0
					})
					if all += took; took > 3*hold+100*time.Millisecond {
						t.Errorf("task %d began after %v", i, took)
					}
					time.Sleep(hold + 10*time.Millisecond)
				}
				if mean := all / 4; mean > 2*hold+100*time.Millisecond {
					t.Errorf("they began after %v, on average", mean)
				}
				if q := s.queued(); q.Size < burst/10 {
					t.Errorf("%d tasks left: too few to be in the way", q.Size)
				}
				s.empty()
				if q := s.queued(); s.ran() != burst+4 || len(s.errs) != 0 || q.Archived != 0 {
					t.Errorf("%d runs, %v, %+v", s.ran(), s.errs, q)
				}
			})
		})
	}
}

// Those of no tenant, who come first, and two tenants, with many, some and few tasks, have equal parts of the wakes while all of
// them have tasks.
func TestSharesTakeTurns(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		free := s.hold(s.locker(), 42)
		var mu sync.Mutex
		var order []string
		s.serve(s.guard(s.locker(), byTenant), func(_ context.Context, task *asynq.Task) error {
			tenant, _ := asynqlock.Field("tenant")(task)
			mu.Lock()
			order = append(order, strings.Join(tenant, ""))
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			return nil
		})
		const few = 8
		for range 5 * few {
			s.enqueue(payOf(""))
		}
		s.until("the first deferrals", func() bool { return s.queued().Retry == 5*few })
		for i := range 3 * few {
			s.enqueue(payOf([]string{"a", "b", "a"}[i%3]))
		}
		s.until("the deferrals", func() bool { return s.queued().Retry == 8*few })
		free()
		s.empty()
		got := map[string]int{}
		for _, tenant := range order[:3*few] {
			got[tenant]++
		}
		for _, tenant := range []string{"", "a", "b"} {
			if n := got[tenant]; n < few-2 || n > few+2 {
				t := s.t
				t.Errorf("of the first %d runs %q had %d: %v", 3*few, tenant, n, order)
			}
		}
		s.check(0, 0)
	})
}

// A deferral gives the share of its task a turn behind all others, or the next one if the task was woken in vain. A task waits in
// its worker if it was woken, or if no task of any share is noted in front of it.
func TestTurnOfADeferral(t *testing.T) {
	everywhere(t, func(s *shop) {
		t, ctx, rdb := s.t, context.Background(), s.client()
		const task, turns = "asynq:{q}:t:x", "asynqlock:shares:{q}:account:1"
		notes := func(share string) string {
			if share == "" {
				return "asynqlock:deferred:{q}:account:1"
			}
			return "asynqlock:share:{q}:" + share + "|account:1"
		}
		for name, c := range map[string]struct {
			noted    string // the shares that have notes, by turn, one for each letter; . is '', which has no turn if it is alone
			share    string
			woken    bool
			mayWait  bool
			waits    int64 // 0, 1 or 2
			ahead    int64
			left     string // the turns
			hasNotes int64  // of its share
		}{
			"no share":                     {left: "", hasNotes: 1},
			"no share, behind one":         {noted: ".", ahead: 1, hasNotes: 2},
			"the first share":              {share: "b", left: "b", hasNotes: 1},
			"behind one without a share":   {noted: ".", share: "b", ahead: 1, left: ".b", hasNotes: 1},
			"without a share, behind some": {noted: "bc", ahead: 2, left: "bc.", hasNotes: 1},
			"behind two shares":            {noted: "bc", share: "d", ahead: 2, left: "bcd", hasNotes: 1},
			"behind its own":               {noted: "bccd", share: "c", ahead: 1 + 2*3, left: "bcd", hasNotes: 3},
			"woken in vain, alone":         {noted: "bc", share: "d", woken: true, left: "dbc", hasNotes: 1},
			"woken in vain, with others":   {noted: "bc", share: "c", woken: true, ahead: 1 + 1*2, left: "bc", hasNotes: 2},
			"may wait, and is the first":   {share: "b", mayWait: true, waits: 1},
			"may wait, woken":              {noted: "bc", share: "d", woken: true, mayWait: true, waits: 2, left: "bc"},
			"may wait, behind a share":     {noted: "b", share: "c", mayWait: true, ahead: 1, left: "bc", hasNotes: 1},
			"may wait, behind one of none": {noted: ".", share: "b", mayWait: true, ahead: 1, left: ".b", hasNotes: 1},
			"of none, behind a share":      {noted: "b", mayWait: true, ahead: 1, left: "b.", hasNotes: 1},
			"may wait, with its note":      {noted: "xbc", share: "x", mayWait: true, waits: 1, left: "bc"},
			"may wait, in second place":    {noted: "bxc", share: "x", mayWait: true, ahead: 1, left: "bxc", hasNotes: 1},
		} {
			rdb.FlushAll(ctx)
			rdb.HSet(ctx, task, "msg", "m")
			if c.woken {
				rdb.HSet(ctx, task, "holdfast:woken", 1)
			}
			for i, share := range strings.Split(strings.ReplaceAll(c.noted, ".", ""), "") {
				rdb.ZAddNX(ctx, turns, redis.Z{Score: float64(i), Member: share})
			}
			for i, share := range strings.Split(c.noted, "") {
				id := fmt.Sprint(i)
				if share == "x" { // the task's own
					id = "x"
				}
				rdb.ZAdd(ctx, notes(strings.Trim(share, ".")), redis.Z{Score: float64(i), Member: id})
			}
			keys := []string{task, notes(c.share), turns, notes("")}
			reply, err := asynqlock.DeferScript.Run(ctx, rdb, keys, "x", 1000, 0, 60_000, c.mayWait, c.share).Slice()
			if err != nil || reply[3] != c.waits || reply[4] != c.ahead {
				t.Errorf("%s: got %v, %v, want %d and %d ahead", name, reply, err, c.waits, c.ahead)
			}
			left := rdb.ZRange(ctx, turns, 0, -1).Val()
			for i, share := range left {
				if share == "" {
					left[i] = "."
				}
			}
			if got, n := strings.Join(left, ""), rdb.ZCard(ctx, notes(c.share)).Val(); got != c.left || n != c.hasNotes {
				t.Errorf("%s: got the turns %q and %d notes, want %q and %d", name, got, n, c.left, c.hasNotes)
			}
			if ttl := rdb.PTTL(ctx, turns).Val(); c.waits == 0 && c.left != "" && (ttl <= time.Minute || ttl > 2*time.Minute) {
				t.Errorf("%s: the turns expire after %v", name, ttl)
			}
		}
	})
}

// While a request has the key, the one task looks by itself whose turn is next, and not one of each share.
func TestOneOfAllSharesLooks(t *testing.T) {
	bubble(t, func(s *shop) {
		const n = 12
		l := s.locker()
		free := s.hold(l, 42)
		s.serve(s.guard(s.locker(), byTenant), succeed)
		for i := range n {
			s.enqueue(payOf(fmt.Sprint("t", i%4)))
		}
		time.Sleep(20 * time.Second)
		if looks := s.of("deferred") - n; looks < 2 || looks > 11 { // after 1, 2, 4 and 8 s
			t.Errorf("%d looks", looks)
		}
		free()
		s.empty()
		s.check(0, 0)
	})
}

// The note of a task that came back by itself goes when the task takes the last place, or else when it ends: releases would look at
// it in vain for 255 ms.
func TestNoteOfTheTaskThatRuns(t *testing.T) {
	for _, tenant := range []string{"", "a"} {
		for _, limit := range []int{1, 2} {
			bubble(t, func(s *shop) {
				ctx, rdb, l, end := context.Background(), s.client(), s.locker(), make(chan struct{})
				gone := func(when string) {
					t.Helper()
					time.Sleep(50 * time.Millisecond)
					if keys := rdb.Keys(ctx, "asynqlock:[ds]*").Val(); len(keys) > 0 {
						t.Errorf("tenant %q, limit %d: %s there are %q", tenant, limit, when, keys)
					}
				}
				free := s.hold(l, 42)
				s.serve(s.guard(s.locker(), byTenant, asynqlock.WithLimit(limit)), func(context.Context, *asynq.Task) error { <-end; return nil })
				s.enqueue(payOf(tenant))
				s.until("the deferral", func() bool { return s.queued().Retry == 1 })
				free()
				if limit > 1 {
					lock, err := l.Acquire(ctx, "account:42", holdfast.WithLimit(limit))
					if err != nil {
						t.Fatal(err)
					}
					defer lock.Release(ctx)
				}
				s.until("the run", func() bool { return s.ran() == 1 })
				if limit > 1 {
					gone("while it runs")
				}
				close(end)
				gone("when it has run")
				s.empty()
			})
		}
	}
}

// The share is that of the field; a task without it has none, and one whose field cannot be read has no key.
func TestNameOfTheShare(t *testing.T) {
	bubble(t, func(s *shop) {
		var waited []holdfast.Event
		l := s.locker(holdfast.WithTrace(&holdfast.Trace{Waiting: func(e holdfast.Event) { waited = append(waited, e) }}))
		defer s.hold(s.locker(), 42)()
		errPart := errors.New("no database")
		for name, c := range map[string]struct {
			payload string
			part    asynqlock.Part
			share   string
			err     error
		}{
			"a tenant":           {`{"account": 42, "tenant": "acme"}`, nil, "acme", nil},
			"a number":           {`{"account": 42, "tenant": 7}`, nil, "7", nil},
			"no tenant":          {`{"account": 42}`, nil, "", nil},
			"null":               {`{"account": 42, "tenant": null}`, nil, "", nil},
			"empty":              {`{"account": 42, "tenant": ""}`, nil, "", nil},
			"a list":             {`{"account": 42, "tenant": []}`, nil, "", asynq.SkipRetry},
			"twice":              {`{"account": 42, "tenant": 1, "Tenant": 2}`, nil, "", asynq.SkipRetry},
			"of two":             {`{"account": 42, "tenant": "a:b"}`, asynqlock.Parts(asynqlock.Field("tenant"), asynqlock.Field("account")), "a%3Ab:42", nil},
			"of two, one absent": {`{"account": 42}`, asynqlock.Parts(asynqlock.Field("account"), asynqlock.Field("tenant")), "", nil},
			"of a part's own":    {`{"account": 42}`, func(*asynq.Task) ([]string, error) { return nil, errPart }, "", errPart},
		} {
			waited = nil
			if c.part == nil {
				c.part = asynqlock.Field("tenant")
			}
			g := s.guard(l, asynqlock.WithShare(c.part), asynqlock.WithBusy(asynqlock.Wait(time.Second)))
			h := g.Wrap(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { t.Error("it ran"); return nil }))
			ctx, cancel := context.WithTimeout(g.Config(asynq.Config{}).BaseContext(), 10*time.Second)
			err := h.ProcessTask(ctx, asynq.NewTask("pay", []byte(c.payload)))
			cancel()
			switch {
			case c.err != nil && (!errors.Is(err, c.err) || len(waited) > 0):
				t.Errorf("%s: got %v and waits %v, want %v", name, err, waited, c.err)
			case c.err == nil && (len(waited) != 1 || waited[0].Share != c.share):
				t.Errorf("%s: got %v and waits %v, want one of %q", name, err, waited, c.share)
			}
		}
	})
}

// Of the shares nothing is left when their tasks have run, not even of those that left the line by hand, or of a share whose name
// is as long as names are.
func TestNothingOfSharesAccumulates(t *testing.T) {
	bubble(t, func(s *shop) {
		ctx, rdb, n := context.Background(), s.client(), 30
		free := s.hold(s.locker(), 42)
		s.serve(s.guard(s.locker(), byTenant, asynqlock.WithLimit(2), asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Minute))), succeed)
		for i := range n {
			s.enqueue(payOf(fmt.Sprint("t", i%3)), asynq.TaskID(fmt.Sprint(i)))
		}
		s.enqueue(payOf(strings.Repeat("long", 100)))
		s.enqueue(payOf(""))
		s.until("the deferrals", func() bool { return s.queued().Retry == n+2 })
		of := func(kind string) (all []string) {
			keys, err := rdb.Keys(ctx, "*").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				if strings.HasPrefix(key, "asynqlock:"+kind) {
					all = append(all, key)
					if ttl := rdb.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 3*time.Minute {
						t.Errorf("%q expires after %v", key, ttl)
					}
				}
			}
			return all
		}
		if names, notes := rdb.ZCard(ctx, "asynqlock:shares:{default}:account:42").Val(), of("share:"); names < 4 || len(notes) != 4 {
			t.Errorf("%d shares, and their notes %q", names, notes)
		}
		for i := range n / 2 {
			if err := s.inspector.DeleteTask(queue, fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		}
		free()
		s.empty()
		if left := of("share"); len(left) > 0 {
			t.Errorf("left are %q", left)
		}
		if s.ran() != n/2+2 {
			t.Errorf("%d ran", s.ran())
		}
	})
}
