package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

func TestCustomersComeBackWhenToldBusy(t *testing.T) {
	for name, c := range map[string]struct {
		status  []int // one for each request, the last one again and again
		verdict shop.Verdict
		busy    int
		down    int
		err     string
	}{
		"at once":         {status: []int{200}, verdict: shop.Bought},
		"sold out":        {status: []int{410}, verdict: shop.Refused},
		"held elsewhere":  {status: []int{409, 200}, verdict: shop.Bought, busy: 1},
		"outcome unknown": {status: []int{503, 409, 410}, verdict: shop.Refused, busy: 1, down: 1},
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
			a := &shop.Answer{Order: "o1", Product: "lamp"}
			buy(t.Context(), server.Client(), server.URL, a, tally)
			if a.Verdict != c.verdict || a.Busy != c.busy || a.Down != c.down {
				t.Errorf("got %+v", a)
			}
			if c.err != "" && (a.Err == nil || !strings.Contains(a.Err.Error(), c.err)) {
				t.Errorf("got error %v, want one with %s", a.Err, c.err)
			}
		})
	}
}

func TestProgressWritesOverItsLineOnATerminal(t *testing.T) {
	var out output
	p := &progress{out: &out, terminal: true, every: time.Millisecond}
	done := p.follow(newTally("", nil))
	for began := time.Now(); strings.Count(out.String(), "\r") == 0 && time.Since(began) < patient; {
		time.Sleep(time.Millisecond)
	}
	done()
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\n") || strings.Count(got, "\r\x1b[K") < 2 {
		t.Errorf("got %q", got)
	}
}
