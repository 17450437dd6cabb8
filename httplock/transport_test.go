package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// sender is a RoundTripper of a test.
type sender func(*http.Request) (*http.Response, error)

func (s sender) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

// stream is the body of a response: a text, and then what end returns.
type stream struct {
	io.Reader
	end    func() error
	closed atomic.Int32
}

func newStream(text string, end func() error) *stream {
	return &stream{Reader: strings.NewReader(text), end: end}
}

func (s *stream) Read(p []byte) (int, error) {
	if n, err := s.Reader.Read(p); err == nil || s.end == nil {
		return n, err
	}
	return 0, s.end()
}

func (s *stream) Close() error { s.closed.Add(1); return nil }

// answer is a sender whose responses have that body.
func answer(body io.ReadCloser) sender {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r}, nil
	}
}

func ask(ctx context.Context, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://API.example.com/v1", body)
	if err != nil {
		panic(err)
	}
	return req
}

const hostKey = "api:api.example.com"

func TestPlaceIsGivenBackWhenTheCallEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		base sender
		end  func(t *testing.T, resp *http.Response, cancel func()) // nil if the call has ended with RoundTrip
		err  error
	}{
		"closed": {answer(newStream("abc", nil)), func(t *testing.T, resp *http.Response, _ func()) { resp.Body.Close() }, nil},
		"read": {answer(newStream("abc", nil)), func(t *testing.T, resp *http.Response, _ func()) {
			if got, err := io.ReadAll(resp.Body); string(got) != "abc" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
		}, nil},
		"broken off": {answer(newStream("abc", func() error { return broken })), func(t *testing.T, resp *http.Response, _ func()) {
			if got, err := io.ReadAll(resp.Body); string(got) != "abc" || err != broken {
				t.Errorf("read %q, %v", got, err)
			}
		}, nil},
		"cancelled":    {answer(newStream("abc", nil)), func(_ *testing.T, _ *http.Response, cancel func()) { cancel(); synctest.Wait() }, nil},
		"an error":     {func(*http.Request) (*http.Response, error) { return nil, broken }, nil, broken},
		"without body": {answer(http.NoBody), nil, nil},
		"nil body":     {answer(nil), nil, nil},
		"a panic":      {func(*http.Request) (*http.Response, error) { panic(broken) }, nil, nil},
		"upgraded": {answer(struct {
			io.ReadCloser
			io.Writer
		}{newStream("abc", nil), io.Discard}), func(t *testing.T, resp *http.Response, _ func()) {
			if _, err := resp.Body.(io.Writer).Write([]byte("x")); err != nil {
				t.Error(err)
			}
			resp.Body.Close()
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				log := logged(t)
				api := newReplica(t, b)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				client := httplock.Transport(api.Locker, "api", httplock.Host, sender(func(r *http.Request) (*http.Response, error) {
					if lock := lockOf(r); lock == nil || lock.Key() != hostKey {
						t.Errorf("sent under %v", lock)
					}
					wantLocked(t, b, hostKey)
					return tt.base(r)
				}), httplock.WithLimit(3))
				req := ask(ctx, nil)
				var resp *http.Response
				var err error
				func() {
					defer func() {
						if p := recover(); (p != nil) != (name == "a panic") {
							t.Errorf("panic with %v", p)
						}
					}()
					resp, err = client.RoundTrip(req)
				}()
				if err != tt.err {
					t.Errorf("got %v, want %v", err, tt.err)
				}
				if resp != nil && (resp.Request != req || resp.StatusCode != http.StatusOK) {
					t.Errorf("got %v of %p, want that of the caller's request %p", resp.Status, resp.Request, req)
				}
				if tt.end != nil {
					time.Sleep(5 * time.Minute)
					wantLocked(t, b, hostKey)
					tt.end(t, resp, cancel)
				}
				wantFree(t, b, hostKey)
				if tt.end != nil { // again, as http.Client and its callers do
					resp.Body.Close()
					resp.Body.Close()
				}
				if n := b.Commands()["evalsha"]; tt.end == nil && n > 2 {
					t.Errorf("%d commands, want 2", n)
				}
				log.want(t, "")
			})
		})
	}
}

// However many replicas and callers there are.
func TestNeverMoreThanNCallsAreUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log := logged(t)
		const n, each, callers = 3, 2, 40
		var mu sync.Mutex
		in, most := map[string]int{}, 0
		enter := func(r *http.Request, by int) {
			mu.Lock()
			defer mu.Unlock()
			tenant := r.Header.Get("Tenant")
			in[""] += by
			in[tenant] += by
			if most = max(most, in[""]); in[""] > n || in[tenant] > each {
				t.Errorf("%d calls are under way, of %s %d", in[""], tenant, in[tenant])
			}
		}
		base := sender(func(r *http.Request) (*http.Response, error) {
			enter(r, 1)
			time.Sleep(time.Second)
			return &http.Response{StatusCode: http.StatusOK, Body: newStream("abc", func() error {
				time.Sleep(time.Second)
				enter(r, -1)
				return io.EOF
			})}, nil
		})
		var all sync.WaitGroup
		began := time.Now()
		for range 2 {
			client := httplock.Transport(newReplica(t, b).Locker, "by-tenant", httplock.Header("Tenant"), base, httplock.WithLimit(each),
				httplock.WithAlso("provider", httplock.Host, holdfast.WithLimit(n)), httplock.WithShare(httplock.Header("Tenant")))
			for i := range callers / 2 {
				all.Go(func() {
					req := ask(context.Background(), nil)
					req.Header.Set("Tenant", fmt.Sprint("t", i%3))
					resp, err := client.RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := io.ReadAll(resp.Body); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if took := time.Since(began); most != n || took > 40*time.Second { // 40 calls of 2 s, three at a time, are 28 s
			t.Errorf("at most %d at once, want %d; all took %v", most, n, took)
		}
		log.want(t, "")
	})
}

// A call that does not get its place is not sent, and its body is closed.
func TestCallsThatAreNotSent(t *testing.T) {
	type tag struct{}
	for name, tt := range map[string]struct {
		opts    []httplock.Option
		part    httplock.Part
		cancel  time.Duration
		silent  bool
		took    time.Duration
		matches []error
	}{
		"busy, Wait(0)":       {opts: []httplock.Option{httplock.WithBusy(httplock.Wait(0))}, matches: []error{holdfast.ErrNotAcquired}},
		"busy, Wait":          {opts: []httplock.Option{httplock.WithBusy(httplock.Wait(time.Minute))}, took: time.Minute, matches: []error{holdfast.ErrNotAcquired}},
		"cancelled":           {cancel: time.Minute, took: time.Minute, matches: []error{holdfast.ErrNotAcquired, context.DeadlineExceeded}},
		"of the Locker's":     {opts: []httplock.Option{httplock.WithLock(holdfast.WithWait(time.Second))}, took: time.Second, matches: []error{holdfast.ErrNotAcquired}},
		"a silent Redis":      {silent: true, opts: []httplock.Option{httplock.WithBusy(httplock.Wait(0))}, took: time.Second, matches: []error{holdfast.ErrUnavailable}},
		"busy, and fail open": {cancel: time.Minute, opts: []httplock.Option{httplock.WithFailOpen()}, took: time.Minute, matches: []error{holdfast.ErrNotAcquired}},
		"cancelled in silence": {silent: true, opts: []httplock.Option{httplock.WithFailOpen()}, cancel: time.Second / 2, took: time.Second / 2,
			matches: []error{holdfast.ErrUnavailable, context.DeadlineExceeded}},
		"unnamed":             {part: httplock.Header("Account"), matches: []error{holdfast.ErrInvalid}},
		"a part's own error":  {part: func(*http.Request) ([]string, error) { return nil, io.ErrNoProgress }, matches: []error{io.ErrNoProgress}},
		"a body that is gone": {part: httplock.JSON("a"), matches: []error{holdfast.ErrInvalid}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				log := logged(t)
				api := newReplica(t, b)
				var refused []error
				opts := append(tt.opts, httplock.WithTrace(&httplock.Trace{Refused: func(r *http.Request, err error) {
					refused = append(refused, err)
					if r.Context().Value(tag{}) != true {
						t.Error("another request")
					}
				}}))
				if tt.part == nil {
					tt.part = httplock.Host
				}
				client := httplock.Transport(api.Locker, "api", tt.part, sender(func(*http.Request) (*http.Response, error) {
					t.Error("the request was sent")
					return nil, io.ErrUnexpectedEOF
				}), opts...)
				defer hold(t, newReplica(t, b), hostKey)()
				if tt.silent {
					api.link.CutUp()
					defer api.link.Heal()
				}
				ctx := context.WithValue(t.Context(), tag{}, true)
				if tt.cancel > 0 {
					limited, cancel := context.WithTimeout(ctx, tt.cancel)
					defer cancel()
					ctx = limited
				}
				body := newStream("x", nil)
				begin := time.Now()
				resp, err := client.RoundTrip(ask(ctx, body))
				wantTook(t, begin, tt.took)
				for _, want := range tt.matches {
					if resp != nil || !errors.Is(err, want) {
						t.Errorf("got %v, %v, want %v", resp, err, want)
					}
				}
				if len(refused) != 1 || refused[0] != err {
					t.Errorf("Refused was told of %v", refused)
				}
				if n := body.closed.Load(); n != 1 {
					t.Errorf("the body was closed %d times", n)
				}
				broken := func(*http.Request) ([]string, error) { return nil, io.ErrNoProgress }
				if _, err := httplock.Transport(api.Locker, "api", broken, nil).RoundTrip(ask(ctx, nil)); err != io.ErrNoProgress {
					t.Errorf("got %v", err) // and the log nothing, as the caller has it
				}
				log.want(t, "")
			})
		})
	}
}

// Open by choice: from the second call on, a Redis that hangs costs next to nothing.
func TestCallsFailOpen(t *testing.T) {
	for _, busy := range [][]httplock.Option{nil, {httplock.WithBusy(httplock.Wait(0))}, {httplock.WithBusy(httplock.Wait(time.Hour))}} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) { testCallsFailOpen(t, b, busy...) })
	}
}

func testCallsFailOpen(t *testing.T, b *servertest.Bubble, busy ...httplock.Option) {
	api := newReplica(t, b)
	var open, told atomic.Int32
	client := httplock.Transport(api.Locker, "api", httplock.Host, sender(func(r *http.Request) (*http.Response, error) {
		if lockOf(r) == nil {
			open.Add(1)
		}
		return answer(newStream("abc", nil))(r)
	}), append(busy, httplock.WithLimit(3), httplock.WithFailOpen(),
		httplock.WithTrace(&httplock.Trace{Unlocked: func(_ *http.Request, err error) {
			told.Add(1)
			if !errors.Is(err, holdfast.ErrUnavailable) {
				t.Error(err)
			}
		}}))...)
	call := func() time.Duration {
		begin := time.Now()
		resp, err := client.RoundTrip(ask(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
		return time.Since(begin)
	}
	call()
	api.link.CutUp()
	if took := call(); took != time.Second {
		t.Errorf("the first took %v", took)
	}
	for i := range 100 {
		if took := call(); took > 20*time.Millisecond {
			t.Fatalf("call %d took %v", i, took)
		}
		time.Sleep(time.Duration(i*i%977) * time.Millisecond)
	}
	if n := open.Load(); n != 101 || told.Load() != n {
		t.Errorf("%d calls without a lock, and %d in the trace, want 101", n, told.Load())
	}
	api.link.Heal()
}

// The context of the call is the lock's: what is under way ends with it, and says so.
func TestLossEndsTheCall(t *testing.T) {
	for name, reading := range map[string]bool{"while it is sent": false, "while its response is read": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				log := logged(t)
				api := newReplica(t, b)
				ends := func(r *http.Request) error {
					b.Redis.Del(hostKey)
					<-r.Context().Done()
					return r.Context().Err()
				}
				client := httplock.Transport(api.Locker, "api", httplock.Host, sender(func(r *http.Request) (*http.Response, error) {
					if !reading {
						return nil, ends(r)
					}
					return answer(newStream("abc", func() error { return ends(r) }))(r)
				}))
				resp, err := client.RoundTrip(ask(t.Context(), nil))
				if reading && err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				if !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want ErrLost and the context's error", err)
				}
				synctest.Wait()
				log.want(t, "the lock was lost while its request ran")
			})
		})
	}
}

// Where nothing was lost, no error says so: also of a body that is read behind its end.
func TestNoLossBehindTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		broken := errors.New("read on a closed body")
		client := httplock.Transport(newReplica(t, b).Locker, "api", httplock.Host, answer(newStream("", func() error { return broken })))
		resp, err := client.RoundTrip(ask(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if _, err := resp.Body.Read(make([]byte, 1)); err != broken {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

// A body that is forgotten keeps the place until it is garbage, or until WithMaxHold.
func TestForgottenBody(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log := logged(t)
		api := newReplica(t, b)
		call := func(opts ...httplock.Option) *http.Response {
			resp, err := httplock.Transport(api.Locker, "api", httplock.Host, answer(newStream("abc", nil)), opts...).RoundTrip(ask(t.Context(), nil))
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		resp := call()
		time.Sleep(time.Hour)
		wantLocked(t, b, hostKey)
		runtime.KeepAlive(resp)
		resp = nil
		for i := 0; b.Redis.Exists(hostKey); i++ {
			if i == 1000 {
				t.Fatal("the place of a forgotten body is never given back")
			}
			runtime.GC()
			time.Sleep(10 * time.Second)
		}
		log.want(t, "")

		resp = call(httplock.WithLock(holdfast.WithMaxHold(time.Minute)))
		time.Sleep(time.Minute + 20*time.Second)
		wantFree(t, b, hostKey)
		log.want(t, "the lock was lost")
		resp.Body.Close()
	})
}

// A part may read the body of a call. It is sent as it was, and the caller's request stays as it was.
func TestKeyOfACallsBody(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		const text = `{"model":"m1","n":1}`
		sent := ""
		client := httplock.Transport(newReplica(t, b).Locker, "model", httplock.JSON("model"), sender(func(r *http.Request) (*http.Response, error) {
			wantLocked(t, b, "model:m1")
			body, err := io.ReadAll(r.Body)
			sent = fmt.Sprint(string(body), err, r.ContentLength)
			r.Body.Close()
			return answer(http.NoBody)(r)
		}))
		original := newStream(text, nil)
		req := ask(t.Context(), original)
		req.ContentLength = int64(len(text))
		if _, err := client.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		if sent != fmt.Sprint(text, nil, len(text)) || req.Body != io.ReadCloser(original) || original.closed.Load() != 1 {
			t.Errorf("sent %q; the caller's body is its own: %v, and closed %d times", sent, req.Body == io.ReadCloser(original), original.closed.Load())
		}
	})
}

// A panic of a hook goes on in the caller, however the call is ended.
func TestPanicOfAHookReachesTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		client := httplock.Transport(api.Locker, "api", httplock.Host, answer(newStream("abc", nil)),
			httplock.WithTrace(&httplock.Trace{Lost: func(*http.Request, error) { panic("hook") }}))
		resp, err := client.RoundTrip(ask(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		b.Redis.Del(hostKey)
		defer func() {
			if p := recover(); p != "hook" {
				t.Errorf("Close panics with %v", p)
			}
		}()
		resp.Body.Close()
	})
}

// With sockets, and http.Client: redirects, and connections that are kept.
func TestTransportOnLoopback(t *testing.T) {
	const n = 4
	redisServer := miniredis.RunT(t)
	var in, most, served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/there", http.StatusFound)
			return
		}
		defer in.Add(-1)
		for now := in.Add(1); ; {
			if before := most.Load(); now <= before || most.CompareAndSwap(before, now) {
				break
			}
		}
		served.Add(1)
		io.WriteString(w, "here")
	}))
	defer server.Close()
	var all sync.WaitGroup
	for range 3 {
		rdb := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
		defer rdb.Close()
		locker, err := holdfast.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(t.Context())
		client := &http.Client{Timeout: time.Minute, Transport: httplock.Transport(locker, "api", httplock.Host, &http.Transport{}, httplock.WithLimit(n))}
		defer client.CloseIdleConnections()
		for range 30 {
			all.Go(func() {
				resp, err := client.Get(server.URL)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if body, err := io.ReadAll(resp.Body); string(body) != "here" || err != nil {
					t.Errorf("got %q, %v", body, err)
				}
			})
		}
	}
	all.Wait()
	if served.Load() != 90 || most.Load() > n {
		t.Errorf("%d served, at most %d at once, want 90 and %d", served.Load(), most.Load(), n)
	}
}
