package sqltest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

var errAbort = errors.New("the holder changed its mind")

const (
	holders = 8   // at a time, for the two resources of a round
	perTurn = 60  // transactions of a round
	issued  = 200 // tokens of a round at most
)

// guard runs a holder's work under its marks: the real one, or one of the controls.
type guard func(ctx context.Context, c *cell, db *sql.DB, marks []sqlfence.Mark, fn func(dbtx) error) error

func fenced(ctx context.Context, c *cell, db *sql.DB, marks []sqlfence.Mark, fn func(dbtx) error) error {
	return c.fence.WithTx(under(ctx, marks...), db, c.opts, func(_ context.Context, tx *sql.Tx) error { return fn(tx) })
}

func under(ctx context.Context, marks ...sqlfence.Mark) context.Context {
	for _, m := range marks {
		ctx = m.In(ctx)
	}
	return ctx
}

// selected checks with a SELECT that locks nothing, as most would, and raises the mark if it is lower. It is first in
// the transaction.
func selected(ctx context.Context, c *cell, db *sql.DB, marks []sqlfence.Mark, fn func(dbtx) error) error {
	tx, err := db.BeginTx(ctx, c.opts)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, m := range marks {
		current, err := c.fence.Current(ctx, tx, m.Resource)
		if err != nil {
			return err
		}
		if current > m.Token {
			return &sqlfence.StaleError{Resource: m.Resource, Token: m.Token, Current: current}
		}
		if current < m.Token {
			if err := c.fence.Guard(m.In(ctx), tx); err != nil {
				return err
			}
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// pooled guards in a transaction of its own, which is over before the work begins.
func pooled(ctx context.Context, c *cell, db *sql.DB, marks []sqlfence.Mark, fn func(dbtx) error) error {
	if err := c.fence.Advance(under(ctx, marks...), db); err != nil {
		return err
	}
	time.Sleep(rand.N(10 * time.Millisecond)) // or SQLite, with one writer at a time, leaves a stale one little room
	tx, err := db.BeginTx(ctx, c.opts)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// seed is that of all random choices: SEED, or another one each time. A test repeats its choices, if not what the
// scheduler makes of them.
var seed = sync.OnceValue(func() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
})

// draws are the choices of one goroutine in one round of a test's history.
func draws(t *testing.T, history string, round, goroutine int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, t.Name(), " ", history, " ", round, " ", goroutine)
	return rand.New(rand.NewPCG(seed(), h.Sum64()))
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// round is one history: two new resources, and holders that start at once and overlap.
type round struct {
	c         *cell
	db        *sql.DB
	guard     guard
	disturb   bool            // cancel contexts, abort, deadlock
	alone     bool            // nothing is parallel
	reads     context.Context // of a lock that readers share, which fences nothing
	raises    bool            // the guard raises the mark by itself, also when the transaction fails, as it does for parallel ones
	resources [2]string
	base      int64
	tokens    atomic.Int64
	h         history
}

var rounds atomic.Int64

func (c *cell) round(t *testing.T, db *sql.DB, g guard, disturb, alone bool, reads context.Context, name string, nth int) verdict {
	n := rounds.Add(1)
	bases := []int64{0, time.Now().UnixMicro(), time.Now().Add(59 * time.Minute).UnixMicro()}
	r := &round{c: c, db: db, guard: g, disturb: disturb, alone: alone, reads: reads, raises: !disturb, base: bases[nth%len(bases)]}
	r.h.advances, r.h.alone = map[string]map[int64]bool{}, alone
	c.exec(t, "DELETE FROM h_entry")
	c.exec(t, "DELETE FROM h_counter")
	for i := range r.resources {
		r.resources[i] = fmt.Sprintf("round:%d:%d", n, i)
		c.exec(t, "INSERT INTO h_counter (resource, value) VALUES (?, 0)", r.resources[i])
	}
	var all sync.WaitGroup
	for i := range holders {
		h := &holder{r, draws(t, name, nth, i)}
		all.Go(h.run)
	}
	stop := func() {}
	if disturb {
		stop = r.trouble(draws(t, name, nth, holders))
	}
	all.Wait()
	stop()
	// A transaction whose connection broke may still be about to end. A transaction that is past the guard has it wait.
	var last []sqlfence.Mark
	for _, name := range r.resources {
		last = append(last, mark(name, r.base+issued+1))
	}
	if err := c.fence.Advance(under(within(t), last...), c.db); err != nil {
		t.Fatal(err)
	}
	return r.h.judge(c.left(t))
}

// holder takes the lock over again and again, and goes on with an old token while others have newer ones.
type holder struct {
	*round
	rand *rand.Rand
}

func (r *holder) run() {
	for r.h.txs.Load() < perTurn && r.tokens.Load() < issued {
		token := r.base + r.tokens.Add(1)
		var marks []sqlfence.Mark
		switch r.rand.IntN(5) {
		case 0:
			marks = []sqlfence.Mark{mark(r.resources[1], token), mark(r.resources[0], token)}
		case 1, 2:
			marks = []sqlfence.Mark{mark(r.resources[1], token)}
		default:
			marks = []sqlfence.Mark{mark(r.resources[0], token)}
		}
		ctx := background
		if r.rand.IntN(3) == 0 {
			r.h.advanced(marks) // whatever comes of it
			if r.c.fence.Advance(under(ctx, marks...), r.db) != nil {
				continue
			}
		}
		if r.disturb && !r.alone && r.rand.IntN(2) == 0 {
			r.beside(marks)
			continue
		}
		for range 1 + r.rand.IntN(4) {
			r.transaction(marks)
			r.pause()
		}
	}
}

// beside runs transactions of one holder at once, most of them parallel.
func (r *holder) beside(marks []sqlfence.Mark) {
	var all sync.WaitGroup
	for range 3 {
		mine := slices.Clone(marks)
		for i := range mine {
			mine[i].Parallel = r.rand.IntN(4) > 0
		}
		one := &holder{r.round, rand.New(rand.NewPCG(r.rand.Uint64(), 0))}
		all.Go(func() {
			for range 1 + one.rand.IntN(3) {
				one.transaction(mine)
				one.pause()
			}
		})
	}
	all.Wait()
}

func (r *holder) transaction(marks []sqlfence.Mark) {
	e := event{tx: rounds.Add(1)<<20 | r.h.txs.Add(1), marks: marks}
	ctx := background
	if r.rand.IntN(2) == 0 {
		ctx = r.reads
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if r.disturb && r.rand.IntN(12) == 0 {
		time.AfterFunc(upTo(r.rand, 6*time.Millisecond), cancel)
	}
	for _, m := range marks {
		// Behind parallel ones PostgreSQL's snapshot may be too old, and an Advance comes first.
		late := r.disturb && !r.alone && r.c.dialect == sqlfence.Postgres && r.c.opts != nil && r.c.opts.Isolation > sql.LevelReadCommitted
		if r.raises || m.Parallel || late {
			r.h.advanced([]sqlfence.Mark{m})
		}
	}
	e.err = r.guard(ctx, r.c, r.db, marks, func(tx dbtx) error {
		r.pause()
		if r.disturb && r.rand.IntN(4) == 0 {
			// Holders of different resources meet at these, in any order.
			for range 2 {
				if _, err := tx.ExecContext(ctx, r.c.q("UPDATE h_shared SET n = n + 1 WHERE id = ?"), r.rand.IntN(shared)); err != nil {
					return err
				}
				r.pause()
			}
		}
		if err := r.c.work(ctx, tx, e.tx, marks, r.pause); err != nil {
			return err
		}
		if r.disturb && r.rand.IntN(10) == 0 {
			return errAbort
		}
		r.pause()
		e.began = r.h.clock.Add(1)
		return nil
	})
	e.returned = r.h.clock.Add(1)
	r.h.add(e)
}

// pause is none most of the time.
func (r *holder) pause() {
	if r.rand.IntN(3) == 0 {
		time.Sleep(upTo(r.rand, 2*time.Millisecond))
	}
}

func (v *verdict) sum(o verdict) {
	v.commits += o.commits
	v.refusals += o.refusals
	v.unknown += o.unknown
	v.aborted += o.aborted
	v.order += o.order
	v.falls += o.falls
	v.lost += o.lost
	v.ghosts += o.ghosts
	v.falseRefusals += o.falseRefusals
	v.example = cmp.Or(v.example, o.example)
}

// spell is how long a history goes on: long enough for the normal run, or a share of a soak.
func spell(t *testing.T) time.Duration {
	if os.Getenv("HOLDFAST_SOAK") == "" {
		return 60 * time.Millisecond
	}
	total, err := time.ParseDuration(cmp.Or(os.Getenv("DURATION"), "10m"))
	if err != nil {
		t.Fatal(err)
	}
	return total / 40 // 16 cells of one engine, each with two guards and their controls
}

// testHistory has no violation, and its controls have.
func testHistory(t *testing.T, c *cell) {
	c.historyTables(t)
	f := &faults{rate: 0.05}
	var mu sync.Mutex
	breaks := draws(t, "faults", 0, 0)
	var begun atomic.Bool
	f.draw = func() float64 {
		if !begun.Load() {
			return 1
		}
		mu.Lock()
		defer mu.Unlock()
		return breaks.Float64()
	}
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := locker.Acquire(background, "report", holdfast.WithShared())
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Shutdown(background)
	defer reader.Release(background)
	reads := reader.Context(background)
	db := c.connect(t, f.dial)
	db.SetMaxOpenConns(3 * holders)
	withGorm := c.withGorm(t, db) // which asks for the server's version, once
	begun.Store(true)
	for _, way := range []struct {
		name  string
		guard guard
		alone bool
	}{{"fence", fenced, false}, {"gorm", withGorm, false}, {"Guard", byHand, true}} {
		var v verdict
		end := time.Now().Add(spell(t))
		for n := 0; v.commits == 0 || v.refusals == 0 || time.Now().Before(end); n++ {
			v.sum(c.round(t, db, way.guard, true, way.alone, reads, way.name, n))
			if t.Failed() || v.violations() > 0 {
				break
			}
		}
		t.Logf("SEED=%d", seed())
		t.Logf("%s: %v; cut %d before COMMIT, %d after, %d elsewhere", way.name, v, f.before.Swap(0), f.after.Swap(0), f.other.Swap(0))
		if v.violations() > 0 {
			t.Errorf("SEED=%d: the fence was passed: %s", seed(), v.example)
		}
	}
	for _, control := range []struct {
		name  string
		guard guard
		fails bool
	}{{"SELECT", selected, c.blindSelect}, {"pool", pooled, true}} {
		if !control.fails {
			continue
		}
		var v verdict
		soaked := time.Now().Add(spell(t) / 8)
		end := time.Now().Add(20 * time.Second)
		for n := 0; v.stale() == 0 && time.Now().Before(end) || time.Now().Before(soaked); n++ {
			v.sum(c.round(t, c.db, control.guard, false, true, reads, control.name, n))
		}
		t.Logf("%s control: %v", control.name, v)
		if v.stale() == 0 {
			t.Errorf("SEED=%d: the %s control passes for a fence: the checker sees nothing", seed(), control.name)
		}
	}
}
