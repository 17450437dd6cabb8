package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// desk is what the provider answers by: nobody before the first gate is open, and the large tenant not before the others are.
type desk struct {
	gates []chan struct{} // the calls that may be there have come, the small tenants have been served, five of the large one are there

	mu                sync.Mutex // guards the following
	now, large, small int        // small have been served
}

func (d *desk) answer(_ http.ResponseWriter, r *http.Request) {
	isLarge, gates := r.Header.Get("X-Tenant") == "large", d.gates[:1]
	d.mu.Lock()
	if d.now++; isLarge {
		gates = d.gates
		if d.large++; d.large == 5 {
			open(d.gates[2])
		}
	}
	d.mu.Unlock()
	for _, gate := range gates {
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now--; isLarge {
		d.large--
	} else if d.small++; d.small == 36 {
		open(d.gates[1])
	}
}

func open(gate chan struct{}) {
	select {
	case <-gate: // already
	default:
		close(gate)
	}
}

// A limit that is too low, and a tenant that takes the places of others, would have the calls wait for ever.
func TestReplicasKeepWithinTheLimits(t *testing.T) {
	addr := servertest.Redis(t).Addr() // a real one: on a busy machine the embedded one is too slow for leases
	t.Setenv("REDIS_ADDR", addr)
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{gates: []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}}
	api := startProvider(d.answer)
	program := exampletest.Start(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, api) })

	// With 20 calls there, one more waits for the provider, and is not sent.
	key := holdfast.Key("provider", strings.TrimPrefix(api.URL, "http://"))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		d.mu.Lock()
		now := d.now
		d.mu.Unlock()
		state, err := locker.Inspect(t.Context(), key)
		if err == nil && now == 20 && state.Waiting > 0 {
			open(d.gates[0])
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the provider has %d calls, and %s is in the state %+v, %v; want 20, and some waiting", now, key, state, err)
		}
	}
	got := program.Wait()
	var small, large string
	const want = "60 calls, of which the provider refused 0\nat most 20 at a time, at most 5 of one tenant\n" +
		"the small tenants had their answers after %s the large one after %s\n"
	if _, err := fmt.Sscanf(got, want, &small, &large); err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	first, err := time.ParseDuration(strings.TrimSuffix(small, ","))
	last, err2 := time.ParseDuration(large)
	if err != nil || err2 != nil || first > last || d.small != 36 {
		t.Errorf("got %q and %d calls of small tenants, want the large tenant to be the last, and 36", got, d.small)
	}
}

// Beside busy programs the embedded Redis can leave a call without an answer, which is then not sent. The others keep within
// the limits all the same.
func TestEmbeddedRedis(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	program := exampletest.Start(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, startProvider(answerSoon)) })
	err, calls := program.Err(), "60"
	if errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrLost) {
		err, calls = nil, `\d+`
	}
	want := regexp.MustCompile(`^` + calls + ` calls, of which the provider refused 0\nat most (1?\d|20) at a time, at most [1-5] of one tenant\nthe small .*\n$`)
	if got := program.Output(); err != nil || !want.MatchString(got) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
