package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// scene shows something that goes wrong, and then the same with what prevents it.
type scene struct {
	name  string // what -scene calls it
	title string
	acts  []act
}

// act is one performance in a scene. Each act brings its own replicas and tables, so none sees what another left behind.
type act struct {
	name   string
	intro  string
	tables string // part of the names of its tables
	play   func(context.Context, *stage, act) (*result, error)

	locked   bool // the shop's route has the lock
	fenced   bool // its writes have the fence
	mustHold bool // a broken invariant is a failure of the program; otherwise it is what the act shows

	charge shop.Charge // takes the payments; if nil, shop.Pay does
}

func (a act) payment() shop.Charge {
	if a.charge == nil {
		return shop.Pay
	}
	return a.charge
}

var scenes = []scene{
	{
		name:  "rush",
		title: "The rush: many customers, little stock. Every replica reads the stock, takes the payment, writes the stock.",
		acts: []act{
			{
				name:   "without the lock",
				intro:  "Without the lock.",
				tables: "open",
				play:   rush,
			},
			{
				name:     "with the lock",
				intro:    "With the lock: the same shop, the same rush, and one more argument on the route.",
				tables:   "locked",
				play:     rush,
				locked:   true,
				mustHold: true,
			},
		},
	},
	{
		name:  "paused",
		title: "The paused replica: two processes, one lamp. The first one is stopped (SIGSTOP) while it holds the lock.",
		acts: []act{
			{
				name:   "without the fence",
				intro:  "Without the fence.",
				tables: "unfenced",
				play:   pause,
				locked: true,
			},
			{
				name:     "with the fence",
				intro:    "With the fence: the sale is written with fence.WithTx.",
				tables:   "fenced",
				play:     pause,
				locked:   true,
				fenced:   true,
				mustHold: true,
			},
		},
	},
	{
		name:  "workers",
		title: "The workers: two asynq servers, four accounts. Each reads the balance, has the bank pay, writes the balance.",
		acts: []act{
			{
				name:   "without the lock",
				intro:  "Without the lock.",
				tables: "loose",
				play:   payouts,
			},
			{
				name:     "with the lock",
				intro:    "With the lock, by account: a task that finds its account busy leaves the worker to another.",
				tables:   "payouts",
				play:     payouts,
				locked:   true,
				mustHold: true,
			},
			{
				name:     "the schedulers",
				intro:    "And three schedulers, one on each replica, with a tick every second.",
				tables:   "ticks",
				play:     ticks,
				mustHold: true,
			},
		},
	},
	{
		name:  "cron",
		title: "The cron job: five replicas, a job of one second, every other second.",
		acts: []act{
			{
				name:     "the cron job",
				intro:    "With cronlock, and without.",
				play:     jobs,
				mustHold: true,
			},
		},
	},
}

// stage is what the scenes share.
type stage struct {
	*shop.Servers
	cfg      config
	size     size
	progress *progress
	out      io.Writer
	errOut   io.Writer
}

// result is the outcome of an act.
type result struct {
	act     act
	lines   []line   // rows of the table of the rush, one for each product
	broken  []string // invariants that broke
	summary string
}

// rush sends all purchases to a shop of several replicas and looks at the books afterwards.
func rush(ctx context.Context, st *stage, a act) (res *result, err error) {
	products := shop.Catalogue(st.cfg.products)
	books, closeBooks, err := st.Books(ctx, a.tables, products, st.cfg.stock)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()

	tally := newTally(st.Prefix+":", products)
	var running replicas
	defer func() { err = errors.Join(err, running.stop(ctx)) }() // a second stop does nothing
	for i := range st.cfg.replicas {
		r, err := st.StartReplica(ctx, shop.Plan{
			Name:   fmt.Sprintf("replica-%d", i+1),
			Scene:  a.tables,
			Locked: a.locked,
			Lock:   []holdfast.Option{holdfast.WithTrace(tally.trace())},
			Charge: a.payment(),
		})
		if err != nil {
			return nil, err
		}
		running = append(running, r)
	}

	done := st.progress.follow(tally)
	answers, err := buyAll(ctx, running.urls(), products, st.cfg.requests, tally)
	done()
	if err != nil {
		return nil, err
	}
	// Stop the replicas before reading the books, so that no handler is still at work.
	if err := running.stop(ctx); err != nil {
		return nil, err
	}
	ledger, err := books.Ledger(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
	}
	res = &result{act: a}
	res.lines, res.broken = audit(products, st.cfg.stock, answers, ledger)
	for i := range res.lines {
		res.lines[i].addWaits(tally)
	}
	res.summary = summarize(res, st.cfg)
	if n := tally.lost.Load(); n > 0 {
		res.summary += fmt.Sprintf(" %d locks were lost on the way: this machine, or the way to Redis, stalled for "+
			"longer than a lease, which no lock can prevent.", n)
	}
	return res, nil
}

type replicas []*shop.Replica

func (rs replicas) urls() []string {
	urls := make([]string, len(rs))
	for i, r := range rs {
		urls[i] = r.URL
	}
	return urls
}

// stop stops all replicas concurrently and empties the list.
func (rs *replicas) stop(ctx context.Context) error {
	stopping := *rs
	*rs = nil
	ended := make(chan error)
	for _, r := range stopping {
		go func() { ended <- r.Stop(ctx) }()
	}
	var errs []error
	for range stopping {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}
