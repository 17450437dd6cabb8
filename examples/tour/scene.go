package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// scene is something that goes wrong, and once more with what prevents it.
type scene struct {
	title string
	acts  []act
}

// act is one of the times. Each brings its own replicas and tables, so that none sees what another left behind.
type act struct {
	name   string
	intro  string
	tables string // what they are called, in part
	play   func(context.Context, *stage, act) (*result, error)

	locked   bool // the shop's route has the lock
	fenced   bool // its writes have the fence
	mustHold bool // what broke is a failure of the program; otherwise it is what the act is there to show
}

var scenes = []scene{
	{
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
		title: "The workers: two asynq servers, 100 payouts. Each reads the balance, has the bank pay, writes the balance.",
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
	cfg      config
	name     string // prefix of every table and of every key
	servers  *servers
	progress *progress
	out      io.Writer
	errOut   io.Writer
}

// result is what came of an act.
type result struct {
	act     act
	lines   []line   // of the table of the rush, one for each product
	broken  []string // invariants
	summary string
}

// goodbye bounds the clean-up after a scene, which also runs after Ctrl-C.
const goodbye = 10 * time.Second

// rush sends all purchases to a shop of several replicas and looks at the books afterwards.
func rush(ctx context.Context, st *stage, a act) (res *result, err error) {
	products := catalogue(st.cfg.products)
	books, closeBooks, err := st.books(ctx, a, products, st.cfg.stock)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()

	tally := newTally(st.name+":", products)
	var running replicas
	defer func() { err = errors.Join(err, running.stop(ctx)) }() // does nothing the second time
	for i := range st.cfg.replicas {
		r, err := startReplica(ctx, st, plan{
			name:   fmt.Sprintf("replica-%d", i+1),
			tables: books.tables,
			locked: a.locked,
			lock:   []holdfast.Option{holdfast.WithTrace(tally.trace())},
			charge: charge,
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
	// The replicas go first, so that no handler is still at work when the books are read.
	if err := running.stop(ctx); err != nil {
		return nil, err
	}
	ledger, err := books.ledger(ctx)
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
		res.summary += fmt.Sprintf(" %d locks were lost on the way: this machine, or the way to Redis, stood still for "+
			"longer than a lease, and no lock can help that.", n)
	}
	return res, nil
}

// books makes an act's tables, which close drops.
func (st *stage) books(ctx context.Context, a act, products []string, stock int) (_ *store, close func() error, err error) {
	books, err := st.servers.database.tables(st.name, a.tables).open()
	if err != nil {
		return nil, nil, err
	}
	close = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		return errors.Join(books.drop(ctx), books.close())
	}
	if err := books.create(ctx, products, stock); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("create tables: %w", err), close())
	}
	return books, close, nil
}

// catalogue names the products.
func catalogue(n int) []string {
	names := []string{"lamp", "chair", "teapot", "bicycle", "umbrella", "kettle", "guitar", "tent"}
	for len(names) < n {
		names = append(names, fmt.Sprintf("product-%d", len(names)+1))
	}
	return names[:n]
}
