package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// patient is for what takes a second: beyond it something hangs.
const patient = 90 * time.Second

// quick are times for tests. Redis is given a quarter of a lease to answer, a second at most. Under a lease of one second
// no replica of a busy machine gets a lock for minutes, and a replica is paused only when it has one.
var quick = live{
	lease: 4 * time.Second, payment: 100 * time.Millisecond, think: 10 * time.Millisecond, comeBack: 50 * time.Millisecond, look: 200 * time.Millisecond,
}

// output is what the program has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// showing is the program with its page.
type showing struct {
	t      *testing.T
	url    string
	cancel context.CancelFunc
	ended  chan error
	stdout output
	stderr output
	pids   map[int]bool // all that were seen
}

func startShow(t *testing.T, l live, redisAddr string, products, replicas int) *showing {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &showing{t: t, cancel: cancel, ended: make(chan error, 1), pids: map[int]bool{}}
	servers, err := shop.OpenServers(ctx, redisAddr, "")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		cfg := Config{Addr: "127.0.0.1:0", Replicas: replicas, Products: products}
		err := show(ctx, servers, cfg, l, &s.stdout, &s.stderr)
		s.ended <- errors.Join(err, servers.Close())
	}()
	t.Cleanup(func() { s.stop() })
	address := regexp.MustCompile(`http://\S+/`)
	until(t, func() bool {
		s.url = address.FindString(s.stdout.String())
		return s.url != ""
	})
	return s
}

// stop is Ctrl-C. It checks that the program ends well and leaves no process.
func (s *showing) stop() {
	s.t.Helper()
	if s.ended == nil {
		return
	}
	s.cancel()
	select {
	case err := <-s.ended:
		// On stderr is what go-redis says of a connection that slept too long.
		if err != nil || !strings.Contains(s.stdout.String(), "units were sold, none of them twice") {
			s.t.Errorf("got %v after\n%s%s", err, &s.stdout, &s.stderr)
		}
	case <-time.After(patient):
		s.t.Error("it goes on after Ctrl-C")
	}
	s.ended = nil
	for pid := range s.pids {
		if p, err := os.FindProcess(pid); err == nil && p.Signal(syscall.Signal(0)) == nil {
			s.t.Errorf("process %d is left", pid)
		}
	}
}

// post presses a button.
func (s *showing) post(path string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNoContent {
		s.t.Fatalf("POST %s: %s: %s", path, resp.Status, body)
	}
}

// viewer is the page: it has what the stream told it.
type viewer struct {
	*showing
	lines   *bufio.Scanner
	picture picture
	log     []entry
}

func (s *showing) view() *viewer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patient)
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"events", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		s.t.Fatalf("got %s, %q", resp.Status, kind)
	}
	v := &viewer{showing: s, lines: bufio.NewScanner(resp.Body)}
	v.lines.Buffer(nil, 1<<20)
	if kind := v.next(); kind != "all" {
		s.t.Fatalf("the stream begins with %q", kind)
	}
	return v
}

// next takes one event and returns its kind.
func (v *viewer) next() (kind string) {
	v.t.Helper()
	var got []string
	for v.lines.Scan() && v.lines.Text() != "" {
		got = append(got, v.lines.Text())
	}
	if len(got) != 2 {
		v.t.Fatalf("got %q, %v for an event", got, v.lines.Err())
	}
	kind, isKind := strings.CutPrefix(got[0], "event: ")
	data, isData := strings.CutPrefix(got[1], "data: ")
	if !isKind || !isData {
		v.t.Fatalf("got %q for an event", got)
	}
	var err error
	switch kind {
	case "all":
		var all struct {
			Picture picture
			Log     []entry
		}
		err = json.Unmarshal([]byte(data), &all)
		v.picture, v.log = all.Picture, all.Log
	case "picture":
		v.picture = picture{}
		err = json.Unmarshal([]byte(data), &v.picture)
	case "log":
		var e entry
		err = json.Unmarshal([]byte(data), &e)
		if n := len(v.log); n > 0 && e.ID != v.log[n-1].ID+1 {
			v.t.Errorf("line %d of the log came after %d", e.ID, v.log[n-1].ID)
		}
		v.log = append(v.log, e)
	default:
		err = fmt.Errorf("an event of kind %q", kind)
	}
	if err != nil {
		v.t.Fatalf("%v: %s", err, data)
	}
	for _, l := range v.picture.Lanes {
		if l.Pid != 0 {
			v.pids[l.Pid] = true
		}
	}
	return kind
}

// until follows the stream until something shows, and returns what of the log came meanwhile.
func (v *viewer) until(what string, shows func(since []entry) bool) []entry {
	v.t.Helper()
	v.t.Logf("until %s", what)
	from := len(v.log)
	for !shows(v.log[from:]) {
		v.next()
	}
	return v.log[from:]
}

func (v *viewer) lane(name string) *lane {
	for _, l := range v.picture.Lanes {
		if l.Name == name {
			return l
		}
	}
	v.t.Fatalf("no lane of %s", name)
	return nil
}

func (v *viewer) product(name string) product {
	for _, p := range v.picture.Products {
		if p.Name == name {
			return p
		}
	}
	v.t.Fatalf("no product %s", name)
	return product{}
}

// has returns whether there is such a line of the log.
func has(log []entry, replica, what string) bool {
	for _, e := range log {
		if e.Replica == replica && e.What == what {
			return true
		}
	}
	return false
}
