package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// onBoth runs a test with the embedded Redis and with a real one.
func onBoth(t *testing.T, test func(t *testing.T, addr string)) {
	t.Parallel()
	for name, addr := range map[string]func(*testing.T) string{
		"embedded": func(*testing.T) string { return "" },
		"real":     func(t *testing.T) string { return servertest.Redis(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, addr(t))
		})
	}
}

// till counts the payments that replicas report. They tell of a payment within the time that they have a place for it.
type till struct {
	mu           sync.Mutex
	inside, most int
	paid         int
	shops        chan string
}

func (c *till) Write(line []byte) (int, error) {
	kind, text, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	if kind == "listening" {
		c.shops <- text
		return len(line), nil
	}
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.What {
	case "pays":
		c.inside++
		c.most = max(c.most, c.inside)
	case "paid":
		c.inside--
		c.paid++
	}
	return len(line), nil
}

func TestTwoPaymentsAtATime(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		const replicas, orders = 3, 4
		products := shop.Catalogue(4)
		servers, err := shop.OpenServers(t.Context(), addr, "")
		if err != nil {
			t.Fatal(err)
		}
		defer servers.Close()
		books, closeBooks, err := servers.Books(t.Context(), scene, products, shelf)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := closeBooks(); err != nil {
				t.Error(err)
			}
		}()
		till := &till{shops: make(chan string, replicas)}
		var played, bought sync.WaitGroup
		var inputs []io.Closer
		for i := range replicas {
			in, input := io.Pipe()
			inputs = append(inputs, input)
			role := shop.Role{
				Name: fmt.Sprint("replica-", i+1), Scene: scene, Fenced: true, Lease: time.Minute,
				Products: products, Payment: 5 * time.Millisecond, Prefix: servers.Prefix,
			}
			played.Go(func() {
				if err := Replica(bufio.NewScanner(in), till, servers, role); err != nil {
					t.Error(err)
				}
			})
		}
		for range replicas {
			url := <-till.shops
			for _, p := range products {
				bought.Go(func() {
					for n := range orders {
						a := &shop.Answer{Product: p, Order: fmt.Sprint(url, p, n)}
						if _, err := shop.Ask(t.Context(), http.DefaultClient, url, a); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		bought.Wait()
		for _, input := range inputs {
			input.Close()
		}
		played.Wait()
		if all := replicas * orders * len(products); till.most != 2 || till.paid != all {
			t.Errorf("%d paid, at most %d at once, want %d and 2", till.paid, till.most, all)
		}
		if err := balance(t.Context(), books, newBoard(quick, nil, nil), io.Discard); err != nil {
			t.Error(err)
		}
	})
}

// pays counts the rows of a replica where a payment is so far; of all replicas for "".
func (v *viewer) pays(replica, pay string) (n int) {
	for _, l := range v.picture.Lanes {
		for _, r := range l.Rows {
			if (replica == "" || l.Name == replica) && r.Phase == "held" && r.Pay == pay {
				n++
			}
		}
	}
	return n
}

// Here no payment ends, so that a place comes free with a lease only.
func TestPlaceOfAPausedReplicaComesFree(t *testing.T) {
	if !shop.CanStop {
		t.Skip("no SIGSTOP here")
	}
	onBoth(t, func(t *testing.T, addr string) {
		endless := quick
		endless.payment = time.Hour
		v := startShow(t, endless, addr, 3, 2).view()
		taken := func(replica string) bool {
			return v.pays(replica, "pays") == 2 && v.pays(replica, "queued") == 1 &&
				v.picture.Payments.Holders == 2 && v.picture.Payments.Limit == 2
		}
		v.until("two pay, and a third one waits", func([]entry) bool {
			if n := v.pays("", "pays"); n > 2 {
				t.Fatalf("%d pay", n)
			}
			return taken("")
		})
		// Each product is a share, which waits in Redis even behind others of its replica.
		v.until("Redis counts the waiters", func([]entry) bool { return v.picture.Payments.Waiting == 1 && v.picture.Payments.Shares == 1 })
		if left := v.picture.Payments.Until - v.picture.Now; left <= 0 || left > endless.lease.Milliseconds() {
			t.Errorf("the first lease ends in %d ms", left)
		}
		// Rather one that waits too: that must not keep it from being paused.
		paused, other := "replica-1", "replica-2"
		if v.pays(paused, "pays") == 0 || v.pays(other, "pays") > 0 && v.pays(other, "queued") > 0 {
			paused, other = other, paused
		}
		v.post("replicas/" + paused + "/pause")
		v.until("the other one has both places", func([]entry) bool {
			if n := v.picture.Payments.Holders; n > 2 {
				t.Fatalf("Redis says that %d pay", n)
			}
			return taken(other)
		})
		if l := v.lane(paused); l.State != "paused" {
			t.Errorf("%+v", l)
		}
		v.post("replicas/" + paused + "/resume")
		since := v.until("it learns of that", func(since []entry) bool { return has(since, paused, "displaced") })
		if has(since, other, "displaced") {
			t.Errorf("the other one lost its place: %v", since)
		}
		v.stop()
	})
}
