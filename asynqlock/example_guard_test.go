package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// runTask runs a guarded handler with a task, like a server with the Guard's Config, but without a server.
func runTask(guard *asynqlock.Guard, handler asynq.HandlerFunc, task *asynq.Task) error {
	ctx := guard.Config(asynq.Config{}).BaseContext()
	return guard.Wrap(handler).ProcessTask(ctx, task)
}

func payout(account int) *asynq.Task {
	return asynq.NewTask("payout", fmt.Appendf(nil, `{"account_id": %d}`, account))
}

func ExampleField() {
	account := asynqlock.Field("account_id")
	fmt.Println(account(asynq.NewTask("payout", []byte(`{"account_id": 42}`))))
	_, err := account(asynq.NewTask("payout", []byte(`{}`)))
	fmt.Println(errors.Is(err, asynq.SkipRetry)) // a retry cannot help: asynq archives the task
	// Output:
	// [42] <nil>
	// true
}

func ExampleParts() {
	part := asynqlock.Parts(asynqlock.Field("tenant"), asynqlock.Field("account_id"))
	fmt.Println(part(asynq.NewTask("payout", []byte(`{"tenant": "acme", "account_id": 42}`))))
	// Output: [acme 42] <nil>
}

// Any function of this form can be a Part, for example for a payload that is not JSON.
func ExamplePart() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	whole := func(t *asynq.Task) ([]string, error) { return []string{string(t.Payload())}, nil }

	guard := asynqlock.New(locker, "account", whole)
	err = runTask(guard, func(ctx context.Context, _ *asynq.Task) error {
		fmt.Println(holdfast.Held(ctx)[0].Key())
		return nil
	}, asynq.NewTask("payout", []byte("42")))
	fmt.Println(err)
	// Output:
	// account:42
	// <nil>
}

// The Locker's Redis is not asynq's. Tasks are deferred for up to six hours in total, and for up to a minute at a time.
func ExampleNew() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	queues, closeQueues := newExampleRedis()
	defer closeQueues()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"), asynqlock.WithRedis(queues),
		asynqlock.WithBusy(asynqlock.Defer().MaxDeferral(6*time.Hour).MaxDelay(time.Minute)))
	fmt.Println(runTask(guard, func(context.Context, *asynq.Task) error { return nil }, payout(42)))
	// Output: <nil>
}

// Two Guards on one server: payouts exclude each other by account, reports by year.
func ExampleGuard_Wrap() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })

	accounts := asynqlock.New(locker, "account", asynqlock.Field("account_id"))
	reports := asynqlock.New(locker, "report", asynqlock.Field("year"))
	mux := asynq.NewServeMux()
	mux.Handle("payout", accounts.Wrap(handler))
	mux.Handle("report", reports.Wrap(handler))
	mux.Handle("mail", handler) // without a lock

	ctx := accounts.Config(asynq.Config{}).BaseContext() // one Config is enough for both
	fmt.Println(mux.ProcessTask(ctx, payout(42)), mux.ProcessTask(ctx, asynq.NewTask("report", []byte(`{"year": 2026}`))))
	// Output: <nil> <nil>
}

// A server that does not use the Guard's Config runs no guarded handler: a deferred task would be archived.
func ExampleGuard_Config() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"))
	handler := guard.Wrap(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))

	plain := asynq.Config{Concurrency: 10, Queues: map[string]int{"payouts": 1}}
	guarded := guard.Config(plain)
	fmt.Println(guarded.Concurrency, guarded.Queues)
	fmt.Println(handler.ProcessTask(guarded.BaseContext(), payout(42)))
	fmt.Println(handler.ProcessTask(context.Background(), payout(42)) != nil)
	// Output:
	// 10 map[payouts:1]
	// <nil>
	// true
}

// A second task is skipped, because it adds nothing while the first one runs.
func ExampleWithBusy() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	trace := &asynqlock.Trace{Skipped: func(_ context.Context, e asynqlock.Event) { fmt.Println(e.Key, "skipped") }}
	guard := asynqlock.New(locker, "index", asynqlock.Field("shop"),
		asynqlock.WithBusy(asynqlock.Skip()), asynqlock.WithTrace(trace))

	first, err := locker.TryAcquire(context.Background(), holdfast.Key("index", "7"))
	if err != nil {
		panic(err)
	}
	defer first.Release(context.Background())
	err = runTask(guard, func(context.Context, *asynq.Task) error {
		fmt.Println("not reached")
		return nil
	}, asynq.NewTask("index", []byte(`{"shop": 7}`)))
	fmt.Println(err)
	// Output:
	// index:7 skipped
	// <nil>
}

// The policies for a busy key. Defer is the default.
func ExamplePolicy() {
	for _, policy := range []asynqlock.Policy{
		asynqlock.Defer(),                      // come back later, without spending a retry
		asynqlock.Wait(200 * time.Millisecond), // wait in line for that long, then come back later
		asynqlock.Skip(),                       // complete without running
		asynqlock.Fail(),                       // fail, by asynq's rules
	} {
		_ = asynqlock.WithBusy(policy)
	}
}

// The lock gets a label, which names its holder, and a bound on how long it is held.
func ExampleWithLock() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"),
		asynqlock.WithLock(holdfast.WithLabel("worker-3"), holdfast.WithMaxHold(10*time.Minute)))

	err = runTask(guard, func(ctx context.Context, _ *asynq.Task) error {
		state, err := locker.Inspect(ctx, "account:42")
		fmt.Println(state.Held, state.Label)
		return err
	}, payout(42))
	fmt.Println(err)
	// Output:
	// true worker-3
	// <nil>
}

// Mail that should rather go out twice than not at all is sent without the lock while the Locker's Redis is down. asynq uses
// another Redis.
func ExampleWithFailOpen() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	server.Close() // Redis is down
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	queues, closeQueues := newExampleRedis()
	defer closeQueues()
	guard := asynqlock.New(locker, "mail", asynqlock.Field("to"), asynqlock.WithRedis(queues), asynqlock.WithFailOpen(),
		asynqlock.WithLock(holdfast.WithTTL(200*time.Millisecond))) // Redis has a quarter of that to answer

	err = runTask(guard, func(ctx context.Context, _ *asynq.Task) error {
		fmt.Println("locks:", len(holdfast.Held(ctx)))
		return nil
	}, asynq.NewTask("mail", []byte(`{"to": "a"}`)))
	fmt.Println(err)
	// Output:
	// locks: 0
	// <nil>
}

// A middleware in front of the Guard counts failures, but not deferrals.
func ExampleDeferredError() {
	failures := 0
	_ = asynq.MiddlewareFunc(func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := next.ProcessTask(ctx, task)
			var deferred *asynqlock.DeferredError
			if err != nil && !errors.As(err, &deferred) {
				failures++
			}
			return err // as it is, or wrapped with %w
		})
	})
}

// If a task's writes are fenced, a run that lost its lock can count as done: what the fence refused, another run does.
func ExampleWithErrorHandler() {
	_ = asynqlock.WithErrorHandler(func(_ context.Context, t *asynq.Task, err error) error {
		if errors.Is(err, holdfast.ErrLost) {
			fmt.Println(t.Type(), "ran to its end after its lock was lost:", err)
			return nil // a success
		}
		return err // the default: a failure
	})
}

// A guarded handler runs without a server. A second Locker stands for another worker. The policy is Fail, because there is
// no task in Redis to defer.
func Example_unitTest() {
	rdb, closeAll := newExampleRedis() // in a test, use miniredis.RunT(t)
	defer closeAll()
	locker, _ := holdfast.New(rdb)
	other, _ := holdfast.New(rdb)
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"), asynqlock.WithBusy(asynqlock.Fail()))
	handler := func(context.Context, *asynq.Task) error { return nil }

	fmt.Println("free:", runTask(guard, handler, payout(42)))
	held, _ := other.TryAcquire(context.Background(), holdfast.Key("account", "42"))
	fmt.Println("held:", errors.Is(runTask(guard, handler, payout(42)), holdfast.ErrNotAcquired))
	_ = held.Release(context.Background())
	// Output:
	// free: <nil>
	// held: true
}

// A Guard and a Scheduler share one set of hooks.
func ExampleWithTrace() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	trace := asynqlock.WithTrace(&asynqlock.Trace{
		Failed: func(_ context.Context, e asynqlock.Event) {
			fmt.Println(e.Key, "is busy:", errors.Is(e.Err, holdfast.ErrNotAcquired))
		},
		Lost:   func(_ context.Context, e asynqlock.Event) { fmt.Println(e.Key, "was lost:", e.Err) },
		Missed: func(_ context.Context, e asynqlock.Event) { fmt.Println(e.Name, "missed", e.Tick, e.Err) },
	})
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"), asynqlock.WithBusy(asynqlock.Fail()), trace)
	_ = asynqlock.NewScheduler(locker, trace)

	held, err := locker.TryAcquire(context.Background(), holdfast.Key("account", "42"))
	if err != nil {
		panic(err)
	}
	defer held.Release(context.Background())
	_ = runTask(guard, func(context.Context, *asynq.Task) error { return nil }, payout(42))
	// Output: account:42 is busy: true
}

// At most two tasks of an account run at a time, on all servers together.
func ExampleWithLimit() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"), asynqlock.WithLimit(2), asynqlock.WithBusy(asynqlock.Fail()))
	nothing := func(context.Context, *asynq.Task) error { return nil }
	fmt.Println(runTask(guard, func(context.Context, *asynq.Task) error {
		return runTask(guard, func(context.Context, *asynq.Task) error { // while another one runs
			fmt.Println(errors.Is(runTask(guard, nothing, payout(42)), holdfast.ErrNotAcquired))
			return nil
		}, payout(42))
	}, payout(42)))
	// Output:
	// true
	// <nil>
}

// A transfer locks both accounts, whichever way the money goes.
func ExampleWithAlso() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	guard := asynqlock.New(locker, "account", asynqlock.Field("from"), asynqlock.WithAlso("account", asynqlock.Field("to")))
	err = runTask(guard, func(ctx context.Context, _ *asynq.Task) error {
		for _, lock := range holdfast.Held(ctx) {
			fmt.Println(lock.Key())
		}
		return nil
	}, asynq.NewTask("transfer", []byte(`{"from": 2, "to": 1}`)))
	fmt.Println(err)
	// Output:
	// account:2
	// account:1
	// <nil>
}
