package page

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/core"
)

// These are the locks that a viewer takes with buttons on the page: one with a limit, one that is shared, one of a leader,
// and three of which a transfer takes two. Replicas that transfer from A to B, from B to C and from C to A would deadlock
// without DoAll.
const (
	permits = "permits"
	prices  = "prices"
	outbox  = "outbox"

	permitsAtOnce = 2
)

var handKeys = []string{permits, prices, outbox, "account:a", "account:b", "account:c"}

// acts are what a replica can be told to begin and to end, with the locks that it holds meanwhile. All replicas stand for
// election from the start. To end "lead" is to resign.
var acts = map[string]struct {
	keys []string
	opts []holdfast.CallOption
}{
	"take":  {[]string{permits}, []holdfast.CallOption{holdfast.WithLimit(permitsAtOnce)}},
	"read":  {[]string{prices}, []holdfast.CallOption{holdfast.WithShared()}},
	"write": {[]string{prices}, nil},
	"lead":  {[]string{outbox}, nil},
	"a-b":   {[]string{"account:a", "account:b"}, nil},
	"b-c":   {[]string{"account:b", "account:c"}, nil},
	"c-a":   {[]string{"account:c", "account:a"}, nil},
}

// hands are the acts that a replica is performing.
type hands struct {
	reporter *reporter
	locker   *holdfast.Locker
	running  sync.WaitGroup

	mu   sync.Mutex                    // also held while a begin or an end is reported, so that reports keep their order
	ends map[string]context.CancelFunc // by act
}

// begin runs an act until it is ended or loses a lock. It does nothing while another act runs that needs one of the same
// locks.
func (h *hands) begin(ctx context.Context, name string) {
	act := acts[name]
	h.mu.Lock()
	defer h.mu.Unlock()
	for other := range h.ends {
		if slices.ContainsFunc(acts[other].keys, func(key string) bool { return slices.Contains(act.keys, key) }) {
			return
		}
	}
	ctx, h.ends[name] = context.WithCancel(ctx)
	h.say("tries", name)
	h.running.Go(func() {
		_ = h.locker.DoAll(ctx, act.keys, func(ctx context.Context) error { // with one key it is Do
			h.work(ctx)
			return nil
		}, act.opts...)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.say("done", name) // an error is in the log already
		h.ends[name]()
		delete(h.ends, name)
	})
}

var errResigned = errors.New("resigned")

// lead stands for election until ctx ends.
func (h *hands) lead(ctx context.Context) {
	h.say("tries", "lead")
	_ = h.locker.Lead(ctx, outbox, func(ctx context.Context) error {
		term, cancel := context.WithCancel(ctx)
		h.mu.Lock()
		h.ends["lead"] = cancel
		h.mu.Unlock()
		defer h.end("lead")
		h.work(term)
		if err := ctx.Err(); err != nil {
			return err // the leadership is lost and Lead stands again at once, or the replica ends
		}
		return errResigned // Lead releases the lock, and stands again after about a second
	})
}

// work stands for what needs the locks. It lasts until their context ends.
func (h *hands) work(ctx context.Context) {
	for _, lock := range holdfast.Held(ctx) {
		h.reporter.say(report{What: "lease", Product: lock.Key(), Token: lock.Token(), Until: lock.Deadline().UnixMilli()})
	}
	<-ctx.Done()
}

// say reports on each lock of an act.
func (h *hands) say(what, name string) {
	for _, key := range acts[name].keys {
		h.reporter.say(report{What: what, Product: key, Text: name})
	}
}

// end ends an act if it is running.
func (h *hands) end(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.ends[name]; cancel != nil {
		cancel()
	}
}
