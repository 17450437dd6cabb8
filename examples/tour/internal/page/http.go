package page

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

//go:embed page.html
var page string

// pageTimeout bounds how long the server tries to send one message to a page whose connection is stuck.
const pageTimeout = 5 * time.Second

// newServer returns a server that does not wait for ever for what a client says it will send. A page that is open stays so:
// net/http counts no time for reading once a request is whole.
func newServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
}

func routes(b *board, f *fleet, w *watch) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", servePage)
	mux.HandleFunc("GET /events", b.serve)
	order := func(path string, do func(*member) error) {
		mux.HandleFunc("POST /replicas/{name}/"+path, func(rw http.ResponseWriter, r *http.Request) {
			m := f.member(r.PathValue("name"))
			if m == nil {
				http.NotFound(rw, r)
				return
			}
			answerTo(rw, m.name, do(m))
		})
	}
	order("pause", (*member).pause)
	order("resume", (*member).resume)
	order("kill", (*member).kill)
	for act := range acts {
		if act != "lead" { // all replicas stand for election from the start
			order("begin/"+act, func(m *member) error { return m.hand("begin " + act) })
		}
		order("end/"+act, func(m *member) error { return m.hand("end " + act) })
	}
	mux.HandleFunc("POST /redis/flush", func(rw http.ResponseWriter, r *http.Request) {
		answerTo(rw, "redis", w.flush(r.Context()))
	})
	return mux
}

func answerTo(rw http.ResponseWriter, who string, err error) {
	switch {
	case errors.Is(err, errNotNow):
		http.Error(rw, who+" is "+err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(rw, who+": "+err.Error(), http.StatusInternalServerError)
	default:
		rw.WriteHeader(http.StatusNoContent)
	}
}

// guarded keeps other sites out. Their pages must not post, which the browser marks by Sec-Fetch-Site or Origin. They must
// not come under a host name of their own that leads here either, because the browser would take them for the page itself.
// So Host has to be an address, localhost, or the host of -addr.
func guarded(addr string, h http.Handler) http.Handler {
	given, _, _ := net.SplitHostPort(addr)
	h = http.NewCrossOriginProtection().Handler(h)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		if net.ParseIP(host) == nil && !strings.EqualFold(host, "localhost") && (given == "" || !strings.EqualFold(host, given)) {
			http.Error(rw, "unknown host", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(rw, r)
	})
}

// servePage sends the page. Its headers allow only the page's own script and styles, and no frames.
func servePage(rw http.ResponseWriter, _ *http.Request) {
	nonce := rand.Text()
	header := rw.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; script-src 'nonce-"+nonce+
		"'; style-src 'nonce-"+nonce+"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(rw, strings.ReplaceAll(page, "NONCE", nonce))
}

// serve streams the board to one page.
func (b *board) serve(rw http.ResponseWriter, r *http.Request) {
	w := b.watch()
	if w == nil {
		http.Error(rw, "too many pages, or shutting down", http.StatusServiceUnavailable)
		return
	}
	defer b.unwatch(w)
	// The page can go away while there are no messages.
	defer context.AfterFunc(r.Context(), func() { b.unwatch(w) })()
	header := rw.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("Connection", "close") // the write deadline of the last message must not apply to another response
	header.Set("X-Content-Type-Options", "nosniff")
	out := http.NewResponseController(rw)
	for m := range w.messages {
		if err := out.SetWriteDeadline(time.Now().Add(pageTimeout)); err != nil {
			return
		}
		if _, err := rw.Write(m); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
	}
}
