package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// balance is what an account has at the beginning. A payout takes 1.
const balance = 100

// payouts runs two asynq servers that work through payouts of a few accounts. Each payout reads the balance, has the bank
// pay, and writes the balance.
func payouts(ctx context.Context, st *stage, a act) (res *result, err error) {
	accounts := []string{"alice", "bob", "carol", "dave"}
	books, closeBooks, err := st.Books(ctx, a.tables, accounts, balance)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()
	q := openQueue(st, a)
	defer func() { err = errors.Join(err, q.close(ctx)) }()

	for range st.size.payouts {
		for _, account := range accounts {
			payload, _ := json.Marshal(payout{Account: account})
			_, err := q.tasks.EnqueueContext(ctx, asynq.NewTask("payout", payload), asynq.Queue(q.name))
			// go-redis resends a command whose answer was late. The ID is random, so a conflict means the same task.
			if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
				return nil, err
			}
		}
	}
	bank := &bank{live: map[string]int{}}
	for i := range 2 {
		w, err := startWorker(st, q, a, fmt.Sprintf("worker-%d", i+1), bank)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, w.stop(ctx)) }()
	}
	if err := q.drain(ctx); err != nil {
		return nil, err
	}
	ledger, err := books.Ledger(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
	}
	res = &result{act: a}
	paid, left := len(ledger.Sales), 0
	for _, account := range accounts {
		left += ledger.Stock[account]
	}
	had := balance * len(accounts)
	if paid != st.size.payouts*len(accounts) {
		res.broken = append(res.broken, fmt.Sprintf("%d payouts instead of %d", paid, st.size.payouts*len(accounts)))
	}
	if left != had-paid {
		res.broken = append(res.broken, fmt.Sprintf("the accounts had %d, %d were paid out, and %d are left", had, paid, left))
	}
	if n := bank.overlaps.Load(); n > 0 {
		res.broken = append(res.broken, fmt.Sprintf("%d payouts began while another of the same account ran", n))
	}
	res.summary = fmt.Sprintf("%s %d payouts of 1 went out of %d, and %d are left. %d began while another of their account ran.",
		strings.ToUpper(a.name[:1])+a.name[1:]+",", paid, had, left, bank.overlaps.Load())
	return res, nil
}

type payout struct {
	Account string `json:"account"`
}

// bank counts the payouts that begin while another of the same account runs.
type bank struct {
	overlaps atomic.Int64
	mu       sync.Mutex
	live     map[string]int
}

func (b *bank) enter(account string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live[account]++; b.live[account] > 1 {
		b.overlaps.Add(1)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.live[account]--
	}
}

// startWorker starts an asynq server. It shares only Redis and the database with the others.
func startWorker(st *stage, q *queue, a act, name string, bank *bank) (_ *worker, err error) {
	w := &worker{name: name, charge: a.payment(), client: redis.NewClient(st.Redis)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop(context.Background()))
		}
	}()
	if w.locker, err = holdfast.New(w.client, holdfast.WithPrefix(st.Prefix+":"), holdfast.WithLabel(name)); err != nil {
		return nil, err
	}
	if w.books, err = st.Store(a.tables); err != nil {
		return nil, err
	}
	config := asynq.Config{Queues: map[string]int{q.name: 1}, Concurrency: 10, LogLevel: asynq.FatalLevel}
	mux := asynq.NewServeMux()
	if a.locked {
		guard := asynqlock.New(w.locker, "account", asynqlock.Field("account"))
		config = guard.Config(config)
		mux.Use(guard.Wrap)
	} else {
		config.TaskCheckInterval = 20 * time.Millisecond // as guard.Config sets it
	}
	mux.HandleFunc("payout", func(ctx context.Context, t *asynq.Task) error { return w.pay(ctx, t, bank) })
	server := asynq.NewServerFromRedisClient(w.client, config)
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	w.server = server
	return w, nil
}

// pay is the handler. It reads, works, and writes what follows from the read.
func (w *worker) pay(ctx context.Context, t *asynq.Task, bank *bank) error {
	var p payout
	if err := json.Unmarshal(t.Payload(), &p); err != nil {
		return err
	}
	defer bank.enter(p.Account)()
	left, err := w.books.Stock(ctx, p.Account)
	if err != nil {
		return err
	}
	if err := w.charge(ctx, p.Account); err != nil {
		return err
	}
	id, _ := asynq.GetTaskID(ctx)
	return w.books.Sell(ctx, shop.Sale{Order: id, Product: p.Account, Serial: left, Replica: w.name}, left-1)
}

// worker stands for a process of its own.
type worker struct {
	name   string
	charge shop.Charge
	client *redis.Client
	locker *holdfast.Locker
	books  *shop.Store
	server *asynq.Server
}

// stop stops the server first, then the Locker whose locks the handlers hold, and then the client.
func (w *worker) stop(ctx context.Context) error {
	if w.server != nil {
		w.server.Shutdown()
	}
	var errs []error
	if w.locker != nil {
		errs = append(errs, shop.AtEnd(ctx, w.locker.Shutdown))
	}
	if w.books != nil {
		errs = append(errs, w.books.Close())
	}
	if err := errors.Join(append(errs, w.client.Close())...); err != nil {
		return fmt.Errorf("shut down %s: %w", w.name, err)
	}
	return nil
}
