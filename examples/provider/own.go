package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// provider is an API that refuses what is above its limit.
type provider struct {
	*httptest.Server
	answer http.HandlerFunc

	mu             sync.Mutex // guards the following
	calls, refused int
	now, most      int
	nowOf          map[string]int // by tenant
	mostOf         int
}

// startProvider starts a provider that answers as answer does.
func startProvider(answer http.HandlerFunc) *provider {
	p := &provider{answer: answer, nowOf: map[string]int{}}
	p.Server = httptest.NewServer(p)
	return p
}

func answerSoon(http.ResponseWriter, *http.Request) { time.Sleep(50 * time.Millisecond) }

// ServeHTTP has counted a call out when its client has the response: the server sends that when ServeHTTP returns.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant := r.Header.Get("X-Tenant")
	defer p.count(tenant, -1)
	if p.count(tenant, 1) > 20 {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	p.answer(w, r)
}

func (p *provider) count(tenant string, by int) (now int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now += by
	p.nowOf[tenant] += by
	if p.most, p.mostOf = max(p.most, p.now), max(p.mostOf, p.nowOf[tenant]); by > 0 {
		p.calls++
		if p.now > 20 {
			p.refused++
		}
	}
	return p.now
}

func (p *provider) report(out io.Writer) {
	fmt.Fprintf(out, "%d calls, of which the provider refused %d\n", p.calls, p.refused)
	fmt.Fprintf(out, "at most %d at a time, at most %d of one tenant\n", p.most, p.mostOf)
}
