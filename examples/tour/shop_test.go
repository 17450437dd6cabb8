package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
)

func TestRepeatedOrderIsSoldOnce(t *testing.T) {
	s := openStore(t)
	server := httptest.NewServer((&shop{replica: "replica-1", books: s, charge: charge}).routes())
	defer server.Close()
	for range 2 {
		a := &answer{order: "o1", product: "lamp"}
		if _, err := ask(t.Context(), server.Client(), server.URL, a); err != nil || a.verdict != bought || a.serial != 3 {
			t.Errorf("got %+v, %v, want unit 3", a, err)
		}
	}
	if left, err := s.stock(t.Context(), "lamp"); err != nil || left != 2 {
		t.Errorf("got %d left, %v, want 2", left, err)
	}
}

func TestCustomersComeBackWhenToldBusy(t *testing.T) {
	for name, c := range map[string]struct {
		status  []int // one for each request, the last one again and again
		verdict verdict
		busy    int
		down    int
		err     string
	}{
		"at once":         {status: []int{200}, verdict: bought},
		"sold out":        {status: []int{410}, verdict: refused},
		"held elsewhere":  {status: []int{409, 200}, verdict: bought, busy: 1},
		"outcome unknown": {status: []int{503, 409, 410}, verdict: refused, busy: 1, down: 1},
		"for ever down":   {status: []int{409, 503}, busy: 1, down: tries, err: "503"},
		"broken":          {status: []int{409, 500}, busy: 1, err: "500"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status := c.status[min(asked, len(c.status)-1)]
				asked++
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(status)
				if status == http.StatusOK {
					_, _ = w.Write([]byte(`{"product":"lamp","serial":2}`))
				}
			}))
			defer server.Close()
			tally := newTally("", []string{"lamp"})
			a := &answer{order: "o1", product: "lamp"}
			buy(t.Context(), server.Client(), server.URL, a, tally)
			if a.verdict != c.verdict || a.busy != c.busy || a.down != c.down {
				t.Errorf("got %+v", a)
			}
			if c.err != "" && (a.err == nil || !strings.Contains(a.err.Error(), c.err)) {
				t.Errorf("got error %v, want one with %s", a.err, c.err)
			}
		})
	}
}

// Without it, a replica that crashed would hold its locks in the embedded Redis for ever.
func TestEmbeddedRedisLetsLeasesEnd(t *testing.T) {
	m, err := backend.Miniredis()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "product:lamp", "crashed", 100*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lock, err := locker.Acquire(ctx, holdfast.Key("product", "lamp"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := locker.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func TestProgressWritesOverItsLineOnATerminal(t *testing.T) {
	var out output
	p := &progress{out: &out, terminal: true, every: time.Millisecond}
	done := p.follow(newTally("", nil))
	time.Sleep(10 * time.Millisecond)
	done()
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\n") || strings.Count(got, "\r\x1b[K") < 2 {
		t.Errorf("got %q", got)
	}
}
