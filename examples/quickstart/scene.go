package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// scene is one act of the program. Each brings its own replicas and tables, so that none sees what another
// left behind.
type scene struct {
	name  string
	intro string
	play  func(context.Context, *stage, scene) (*result, error)

	locked   bool // the shop's route has the lock
	mustHold bool // what broke is a failure of the program; otherwise it is what the scene is there to show
}

var scenes = []scene{
	{
		name:  "without the lock",
		intro: "Without the lock: every replica reads the stock, takes the payment, writes the stock.",
		play:  rush,
	},
	{
		name:     "with the lock",
		intro:    "With the lock: the same shop, the same rush, and one more argument on the route.",
		play:     rush,
		locked:   true,
		mustHold: true,
	},
}

// stage is what the scenes share.
type stage struct {
	cfg      config
	name     string // prefix of every table and of every key
	servers  *servers
	progress *progress
}

// result is what came of a scene.
type result struct {
	scene   scene
	lines   []line   // of the table, one for each product
	broken  []string // invariants
	summary string
}

// goodbye bounds the clean-up after a scene, which also runs after Ctrl-C.
const goodbye = 10 * time.Second

// rush sends all purchases to a shop of several replicas and looks at the books afterwards.
func rush(ctx context.Context, st *stage, sc scene) (res *result, err error) {
	products := catalogue(st.cfg.products)
	tables := st.servers.database.tables(st.name, sc.locked)
	books, err := tables.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, books.close()) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		err = errors.Join(err, books.drop(ctx))
	}()
	if err := books.create(ctx, products, st.cfg.stock); err != nil {
		return nil, fmt.Errorf("create tables: %w", err)
	}

	tally := newTally(st.name+":", products)
	var running replicas
	defer func() { err = errors.Join(err, running.stop(ctx)) }() // does nothing the second time
	for i := range st.cfg.replicas {
		r, err := startReplica(ctx, fmt.Sprintf("replica-%d", i+1), st, tables, sc.locked, tally)
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
	res = &result{scene: sc}
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

// catalogue names the products.
func catalogue(n int) []string {
	names := []string{"lamp", "chair", "teapot", "bicycle", "umbrella", "kettle", "guitar", "tent"}
	for len(names) < n {
		names = append(names, fmt.Sprintf("product-%d", len(names)+1))
	}
	return names[:n]
}
