package page

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fleetAtRest has replicas that nobody started.
func fleetAtRest() *fleet {
	return newFleet(nil, quick, 2, []string{"lamp"}, nil)
}

func TestPageTakesOrdersFromItselfOnly(t *testing.T) {
	f := fleetAtRest()
	const atRest = http.StatusConflict // the order got through: there is nothing to pause
	for name, c := range map[string]struct {
		method, path, host string
		header             map[string]string
		want               int
	}{
		"the page":                      {header: map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8780"}, want: atRest},
		"the page in an old browser":    {header: map[string]string{"Origin": "http://127.0.0.1:8780"}, want: atRest},
		"a program":                     {want: atRest},
		"localhost":                     {host: "localhost:8780", want: atRest},
		"an IPv6 address":               {host: "[::1]:8780", want: atRest},
		"the name that -addr says":      {host: "shop.internal:8780", want: atRest},
		"another site":                  {header: map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}, want: http.StatusForbidden},
		"another port of this machine":  {header: map[string]string{"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"}, want: http.StatusForbidden},
		"another site, old browser":     {header: map[string]string{"Origin": "http://evil.example"}, want: http.StatusForbidden},
		"a sandboxed frame":             {header: map[string]string{"Origin": "null"}, want: http.StatusForbidden},
		"a name that leads here":        {host: "evil.example:8780", header: map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example:8780"}, want: http.StatusMisdirectedRequest},
		"reading by a name":             {method: http.MethodGet, path: "/events", host: "evil.example", want: http.StatusMisdirectedRequest},
		"a link":                        {method: http.MethodGet, want: http.StatusMethodNotAllowed},
		"flushing from another site":    {path: "/redis/flush", header: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: http.StatusForbidden},
		"a replica that does not exist": {path: "/replicas/replica-3/kill", want: http.StatusNotFound},
		"kill what does not run":        {path: "/replicas/replica-2/kill", want: atRest},
		"resume what does not run":      {path: "/replicas/replica-2/resume", want: atRest},
		"begin what does not run":       {path: "/replicas/replica-1/begin/read", want: atRest},
		"end what does not run":         {path: "/replicas/replica-1/end/a-b", want: atRest},
		"begin from another site":       {path: "/replicas/replica-1/begin/write", header: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: http.StatusForbidden},
		"lead now":                      {path: "/replicas/replica-1/begin/lead", want: http.StatusNotFound},
		"no such act":                   {path: "/replicas/replica-1/begin/sing", want: http.StatusNotFound},
		"no such order":                 {path: "/replicas/replica-1/shout", want: http.StatusNotFound},
		"the page itself":               {method: http.MethodGet, path: "/", want: http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(or(c.method, http.MethodPost), or(c.path, "/replicas/replica-1/pause"), nil)
			r.Host = or(c.host, "127.0.0.1:8780")
			for k, v := range c.header {
				r.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			guarded("shop.internal:8780", routes(f.board, f, &watch{})).ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, c.want)
			}
		})
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// The policy lets in what has the nonce; a style or a script without it would silently be missing.
func TestPageIsAllThatIsLoaded(t *testing.T) {
	first, second := httptest.NewRecorder(), httptest.NewRecorder()
	servePage(first, nil)
	servePage(second, nil)
	policy := first.Header().Get("Content-Security-Policy")
	_, nonce, _ := strings.Cut(policy, "'nonce-")
	nonce, _, _ = strings.Cut(nonce, "'")
	text := first.Body.String()
	if len(nonce) < 20 || strings.Count(text, `nonce="`+nonce+`"`) != 2 || strings.Contains(text, "NONCE") {
		t.Errorf("nonce %q is not that of the style and the script", nonce)
	}
	if policy == second.Header().Get("Content-Security-Policy") {
		t.Error("the nonce can be known beforehand")
	}
	for _, external := range []string{"http:", "https:", "//", "@import", "url("} {
		for line := range strings.Lines(text) {
			code, _, _ := strings.Cut(" "+line, " // ") // comments
			if strings.Contains(code, external) {
				t.Errorf("%q in %q", external, line)
			}
		}
	}
}

// Every sale writes lines, so a page that comes back would soon find no refused write among the last of them.
func TestBoardKeepsRefusedWritesBeyondTheLog(t *testing.T) {
	b := fleetAtRest().board
	b.report("replica-1", report{What: "refused", Product: "lamp", Token: 7})
	for range 2 * remembered {
		b.report("replica-2", report{What: "sold", Product: "lamp"})
	}
	var all struct{ Log, Refusals []entry }
	_, data, _ := strings.Cut(string(<-b.watch().messages), "data: ")
	if err := json.Unmarshal([]byte(data), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Log) != remembered || len(all.Refusals) != 1 || all.Refusals[0].Token != 7 {
		t.Errorf("got %d lines and refusals %+v, want %d and the one", len(all.Log), all.Refusals, remembered)
	}
}

func TestSlowPageIsDropped(t *testing.T) {
	b := fleetAtRest().board
	server := httptest.NewServer(http.HandlerFunc(b.serve))
	defer server.Close()
	defer b.close()
	slow, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.(*net.TCPConn).SetReadBuffer(1 << 12); err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	watching := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.watchers)
	}
	until(t, func() bool { return watching() == 1 })

	// More than buffers on the way can take, and it is never waited for: else this would not end.
	b.change(func() { b.picture.Redis = strings.Repeat("x", 1<<16) })
	for range 100 * backlog {
		if watching() == 0 {
			break
		}
		b.change(func() {})
	}
	if n := watching(); n != 0 {
		t.Fatalf("%d pages, want the slow one dropped", n)
	}
	b.change(func() { b.picture.Redis = "" })

	resp, err := http.Get(server.URL) // comes back
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "event: all\n" {
		t.Errorf("got %q, %v", line, err)
	}
	resp.Body.Close()
	until(t, func() bool { return watching() == 0 })
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patient {
			t.Fatal("it does not come to that")
		}
	}
}

func TestBoardHasRoomForSoManyPages(t *testing.T) {
	b := fleetAtRest().board
	var last *watcher
	for range mostWatched {
		if last = b.watch(); last == nil {
			t.Fatal("no room")
		}
	}
	if b.watch() != nil {
		t.Error("no bound")
	}
	b.unwatch(last)
	b.unwatch(last)
	if b.watch() == nil {
		t.Error("no room after one has gone")
	}
	b.close()
	b.close()
	if b.watch() != nil {
		t.Error("open after the end")
	}
}

// A client that does not send what it said it would is not waited for. A page that only listens stays.
func TestServerWaitsForNoBodyForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fleetAtRest()
		listener := pipes(make(chan net.Conn))
		server := newServer(guarded("", routes(f.board, f, &watch{})))
		go server.Serve(listener)
		connect := func(request string) net.Conn {
			near, far := net.Pipe()
			listener <- far
			if _, err := near.Write([]byte(request)); err != nil {
				t.Error(err)
			}
			return near
		}
		page := connect("GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		var read atomic.Int64
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for buf := make([]byte, 1<<12); ; {
				n, err := page.Read(buf)
				if read.Add(int64(n)); err != nil {
					return
				}
			}
		}()
		for _, request := range []string{
			"POST /replicas/replica-1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n",
			"POST /replicas/replica-1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\n",
		} {
			began := time.Now()
			client := connect(request)
			_, _ = io.Copy(io.Discard, client) // until the server closes it
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%q kept a connection for %v", request, took)
			}
			client.Close()
		}
		time.Sleep(time.Hour)
		before := read.Load()
		f.board.report("replica-1", report{What: "sold", Product: "lamp"})
		synctest.Wait()
		if read.Load() == before {
			t.Error("the page is told of nothing any more")
		}
		f.board.close()
		page.Close()
		<-gone
		server.Close()
	})
}

// pipes is a listener of the connections that it is given.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }
