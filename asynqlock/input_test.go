package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/redis/go-redis/v9"
)

func TestField(t *testing.T) {
	for payload, want := range map[string]string{
		`{"id": "a b"}`:                                "a b",
		`{"id": 42}`:                                   "42",
		`{"id": "42"}`:                                 "42",
		`{"id": -1.50e3}`:                              "-1.50e3",
		`{"id": 9007199254740993123}`:                  "9007199254740993123",
		`{"id": "é"}`:                                  "é",
		`{"\u0069d": "\u0062"}`:                        "b",
		`{"id": 1, "id": 2}`:                           "",
		`{"id": 1, "\u0069d": 1}`:                      "", // the same name
		`{"id": "a", "ID": "b"}`:                       "", // a struct has the second
		`{"id": "\u0000~@\n"}`:                         "\x00~@\n",
		`{"id": "` + strings.Repeat("x", 1<<20) + `"}`: strings.Repeat("x", 1<<20),
		` { "x" : {"id": 1} , "id" : "b" } `:           "b",
		``:                                             "",
		`null`:                                         "",
		`[1]`:                                          "",
		`{"id": 1`:                                     "",
		`{"id": 1} x`:                                  "",
		`{}`:                                           "",
		`{"ID": 1}`:                                    "",
		`{"id": null}`:                                 "",
		`{"id": ""}`:                                   "",
		`{"id": true}`:                                 "",
		`{"id": [1]}`:                                  "",
		`{"id": {"a": 1}}`:                             "",
		"\xff\xfe":                                     "",
	} {
		got, err := asynqlock.Field("id")(asynq.NewTask("pay", []byte(payload)))
		if want == "" {
			if !errors.Is(err, holdfast.ErrInvalid) || !errors.Is(err, asynq.SkipRetry) || !strings.Contains(err.Error(), `"pay"`) {
				t.Errorf("%s: got %q, %v", payload, got, err)
			}
			continue
		}
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %q, %v, want %q", payload, got, err, want)
		}
	}
}

// What cannot be locked does not run, and its error decides what becomes of it.
func TestTasksThatNameNothing(t *testing.T) {
	t.Parallel()
	part := func(parts []string, err error) asynqlock.Part {
		return func(*asynq.Task) ([]string, error) { return parts, err }
	}
	for name, c := range map[string]struct {
		part  asynqlock.Part
		state asynq.TaskState // 0 if it is gone
	}{
		"a payload without the field": {part: asynqlock.Field("tenant"), state: asynq.TaskStateArchived},
		"one of two":                  {part: asynqlock.Parts(asynqlock.Field("account"), asynqlock.Field("tenant")), state: asynq.TaskStateArchived},
		"no part":                     {part: part(nil, nil), state: asynq.TaskStateArchived},
		"an empty part":               {part: part([]string{"a", ""}, nil), state: asynq.TaskStateArchived},
		"an error":                    {part: part(nil, errHandler), state: asynq.TaskStateRetry},
		"an error that skips":         {part: part(nil, fmt.Errorf("x: %w", asynq.SkipRetry)), state: asynq.TaskStateArchived},
		"an error that revokes":       {part: part(nil, fmt.Errorf("x: %w", asynq.RevokeTask))},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *shop) {
				s.serve(asynqlock.New(s.locker(), "account", c.part), succeed, func(c *asynq.Config) {
					c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
				})
				info := s.enqueue(pay(42))
				s.until("the error", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.errs) == 1 })
				time.Sleep(time.Second)
				got, err := s.inspector.GetTaskInfo(queue, info.ID)
				if c.state == 0 {
					if !errors.Is(err, asynq.ErrTaskNotFound) {
						t.Errorf("got %v, %v, want it gone", got, err)
					}
				} else if err != nil || got.State != c.state {
					t.Errorf("got %v, %v, want it in state %v", got, err, c.state)
				}
				if s.ran() > 0 {
					t.Error("it ran")
				}
			})
		})
	}
}

func TestMistakesInTheCallingCode(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	clients := []*redis.Client{rdb, redis.NewClient(&redis.Options{Addr: "127.0.0.1:2"}), redis.NewClient(&redis.Options{Addr: "127.0.0.1:3"})}
	several, err := redlock.New(clients)
	if err != nil {
		t.Fatal(err)
	}
	part := asynqlock.Field("id")
	guard := func(opts ...asynqlock.Option) func() {
		return func() { asynqlock.New(l, "account", part, opts...) }
	}
	scheduler := func(opts ...asynqlock.SchedulerOption) func() {
		return func() { asynqlock.NewScheduler(l, opts...) }
	}
	for name, c := range map[string]struct {
		f    func()
		says []string
	}{
		"no locker":     {func() { asynqlock.New(nil, "account", part) }, []string{"no Locker"}},
		"no resource":   {func() { asynqlock.New(l, "", part) }, []string{"no resource"}},
		"no part":       {func() { asynqlock.New(l, "account", nil) }, []string{"no part"}},
		"no field":      {func() { asynqlock.New(l, "account", asynqlock.Field("")) }, []string{"no part", "names"}},
		"no parts":      {func() { asynqlock.New(l, "account", asynqlock.Parts()) }, []string{"Parts"}},
		"nil part":      {func() { asynqlock.New(l, "account", asynqlock.Parts(part, nil)) }, []string{"Parts"}},
		"which Redis":   {func() { asynqlock.New(several, "account", part) }, []string{"WithRedis"}},
		"nil option":    {guard(nil), []string{"nil option"}},
		"contradiction": {guard(asynqlock.WithLock(holdfast.WithTTL(time.Hour), holdfast.WithMaxHold(time.Second))), []string{"WithLock", "WithMaxHold(1s)"}},
		"re-entry":      {guard(asynqlock.WithLock(holdfast.WithReentryID("id"))), []string{"WithReentryID is for one call"}},
		"negative wait": {guard(asynqlock.WithBusy(asynqlock.Wait(-time.Second))), []string{"WithBusy(Wait(-1s))"}},
		"no deferral":   {guard(asynqlock.WithBusy(asynqlock.Defer().MaxDeferral(0))), []string{"MaxDeferral(0s)"}},
		"no delay":      {guard(asynqlock.WithBusy(asynqlock.Fail().MaxDelay(time.Millisecond))), []string{"MaxDelay(1ms)"}},
		"no decision":   {guard(asynqlock.WithErrorHandler(nil)), []string{"WithErrorHandler(nil)"}},
		"no trace":      {guard(asynqlock.WithTrace(nil)), []string{"WithTrace(nil)"}},
		"no share":      {guard(asynqlock.WithShare(asynqlock.Field())), []string{"WithShare: no part"}},
		"shares of several": {func() {
			asynqlock.New(several, "account", part, asynqlock.WithShare(part), asynqlock.WithRedis(rdb))
		}, []string{"WithShare: ", "need one Redis"}},
		"order of several":  {guard(asynqlock.WithOrder(), asynqlock.WithAlso("account", part)), []string{"WithOrder does not go with WithAlso"}},
		"order and shares":  {guard(asynqlock.WithOrder(), asynqlock.WithShare(part)), []string{"WithOrder does not go with WithShare"}},
		"order, fail open":  {guard(asynqlock.WithOrder(), asynqlock.WithFailOpen()), []string{"WithOrder does not go with WithFailOpen"}},
		"order that skips":  {guard(asynqlock.WithOrder(), asynqlock.WithBusy(asynqlock.Skip())), []string{"WithOrder does not go with WithBusy"}},
		"order that fails":  {guard(asynqlock.WithBusy(asynqlock.Fail()), asynqlock.WithOrder()), []string{"WithOrder does not go with WithBusy"}},
		"order, and a wait": {guard(asynqlock.WithOrder(), asynqlock.WithBusy(asynqlock.Wait(time.Second))), []string{"WithOrder does not go with WithBusy"}},
		"no Redis":          {guard(asynqlock.WithRedis(nil)), []string{"WithRedis(nil)"}},
		"a nil Redis":       {guard(asynqlock.WithRedis((*redis.Client)(nil))), []string{"WithRedis(nil)"}},
		"all at once": {func() {
			asynqlock.New(nil, "", part, asynqlock.WithBusy(asynqlock.Wait(-1).MaxDelay(0).MaxDeferral(-1)), nil, asynqlock.WithRedis(nil))
		}, []string{"no Locker", "no resource", "MaxDelay(0s)", "nil option", "MaxDeferral(-1ns)", "Wait(-1ns)", "WithRedis(nil)"}},
		"no handler":           {func() { asynqlock.New(l, "account", part).Wrap(nil) }, []string{"Wrap"}},
		"nil function":         {func() { asynqlock.New(l, "account", part).Wrap(asynq.HandlerFunc(nil)) }, []string{"Wrap"}},
		"nil mux":              {func() { asynqlock.New(l, "account", part).Wrap((*asynq.ServeMux)(nil)) }, []string{"Wrap"}},
		"scheduler, no locker": {func() { asynqlock.NewScheduler(nil) }, []string{"no Locker"}},
		"scheduler, several":   {func() { asynqlock.NewScheduler(several) }, []string{"WithRedis"}},
		"scheduler, option":    {scheduler(nil), []string{"nil option"}},
		"scheduler, Redis":     {scheduler(asynqlock.WithRedis(nil)), []string{"WithRedis(nil)"}},
		"also a wait": {func() {
			asynqlock.New(newLocker(t), "account", part, asynqlock.WithAlso("account", part, holdfast.WithWait(time.Second)))
		}, []string{"WithAlso: ", "WithWait"}},
		"also nothing": {func() { asynqlock.New(newLocker(t), "account", part, asynqlock.WithAlso("", nil)) }, []string{"WithAlso: no resource", "WithAlso: no part"}},
		"too many": {func() {
			asynqlock.New(newLocker(t), "account", part, slices.Repeat([]asynqlock.Option{asynqlock.WithAlso("account", part)}, 64)...)
		},
			[]string{"65 locks", "at most 64"}},
		"scheduler, location":   {scheduler(asynqlock.WithLocation(nil)), []string{"WithLocation(nil)"}},
		"scheduler, lateness":   {scheduler(asynqlock.WithLateness(0)), []string{"WithLateness(0s)"}},
		"scheduler, claim":      {scheduler(asynqlock.WithClaim(tick.WithWindow(0, 0))), []string{"WithClaim", "WithWindow"}},
		"scheduler, nil claim":  {scheduler(asynqlock.WithClaim(nil)), []string{"WithClaim"}},
		"scheduler, no trace":   {scheduler(asynqlock.WithTrace(nil)), []string{"WithTrace(nil)"}},
		"scheduler, everything": {scheduler(asynqlock.WithLateness(-1), asynqlock.WithLocation(nil)), []string{"WithLateness(-1ns)", "WithLocation(nil)"}},
	} {
		func() {
			defer func() {
				err, ok := recover().(error)
				if !ok || !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "asynqlock: ") {
					t.Errorf("%s: got %v, want a panic with an ErrInvalid", name, err)
					return
				}
				for _, what := range c.says {
					if !strings.Contains(err.Error(), what) {
						t.Errorf("%s: got %v, want it to say %q", name, err, what)
					}
				}
			}()
			c.f()
		}()
	}
	// A Redis to look up tasks in makes a Locker on several do.
	asynqlock.New(several, "account", part, asynqlock.WithRedis(rdb))
}

// Without Config, deferrals would spend retries: no task runs at all then.
func TestServerWithoutConfig(t *testing.T) {
	g := asynqlock.New(newLocker(t), "account", asynqlock.Field("account"))
	h := g.Wrap(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		t.Error("it ran")
		return nil
	}))
	if err := h.ProcessTask(t.Context(), pay(42)); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "Guard.Config") {
		t.Errorf("got %v", err)
	}
}

func newLocker(t *testing.T) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type userKey struct{}

// What the user's Config says stays in force for everything but deferrals.
func TestConfigKeepsWhatTheUserSays(t *testing.T) {
	deferral := fmt.Errorf("wrapped: %w", &asynqlock.DeferredError{Delay: 7 * time.Second})
	fatal := errors.New("counts")
	var handled []error
	cfg := asynq.Config{
		Concurrency:    3,
		BaseContext:    func() context.Context { return context.WithValue(context.Background(), userKey{}, "user") },
		IsFailure:      func(err error) bool { return errors.Is(err, fatal) },
		RetryDelayFunc: func(n int, err error, _ *asynq.Task) time.Duration { return time.Duration(n) * time.Hour },
		ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled = append(handled, err) }),
	}
	g := asynqlock.New(newLocker(t), "account", asynqlock.Field("account"))
	for range 2 { // several Guards, each with a call, do no harm
		cfg = g.Config(cfg)
	}
	if cfg.Concurrency != 3 || cfg.BaseContext().Value(userKey{}) != "user" {
		t.Error("the rest of the Config is gone")
	}
	if cfg.IsFailure(deferral) || !cfg.IsFailure(fatal) || cfg.IsFailure(errHandler) || cfg.IsFailure(nil) {
		t.Error("IsFailure is wrong")
	}
	if d := cfg.RetryDelayFunc(2, deferral, pay(1)); d != 7*time.Second {
		t.Errorf("a deferral has a delay of %v", d)
	}
	if d := cfg.RetryDelayFunc(2, fatal, pay(1)); d != 2*time.Hour {
		t.Errorf("a failure has a delay of %v", d)
	}
	for _, err := range []error{deferral, fatal} {
		cfg.ErrorHandler.HandleError(t.Context(), pay(1), err)
	}
	if len(handled) != 1 || handled[0] != fatal {
		t.Errorf("ErrorHandler got %v", handled)
	}

	bare := g.Config(asynq.Config{})
	if bare.ErrorHandler != nil || !bare.IsFailure(fatal) || bare.IsFailure(deferral) || bare.IsFailure(nil) ||
		bare.RetryDelayFunc(1, fatal, pay(1)) < time.Second || bare.RetryDelayFunc(1, deferral, pay(1)) != 7*time.Second {
		t.Error("asynq's defaults are gone")
	}
}
