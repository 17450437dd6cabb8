package httplock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

type userKey struct{}

type name string

func TestHandlerRunsUnderTheLocksContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log := logged(t)
		api := newReplica(t, b)
		var inside, outside context.Context
		outer := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r = r.WithContext(context.WithValue(r.Context(), userKey{}, 7))
				outside = r.Context()
				next.ServeHTTP(w, r)
				if r.Context() != outside || lockOf(r) != nil || outside.Err() != nil {
					t.Error("behind the middleware the request has another context, or one that ended")
				}
			})
		}
		mw := httplock.Middleware(api.Locker, "order", byID, httplock.WithAlso("user", httplock.Context(userKey{})))
		h := route(func(w http.ResponseWriter, r *http.Request) {
			inside = r.Context()
			if held := holdfast.Held(inside); len(held) != 2 || held[0].Key() != "user:7" || held[1].Key() != "order:42" || held[0].Token() == 0 {
				t.Errorf("the request has %v", held)
			}
			wantLocked(t, b, "order:42")
			ok(w, r)
		}, outer, mw, mw) // listed twice, it goes on under the same locks
		wantStatus(t, get(h, "/orders/42"), http.StatusOK)
		if inside.Err() == nil {
			t.Error("the lock's context goes on behind the handler")
		}
		wantFree(t, b, "order:42")
		wantFree(t, b, "user:7")
		log.want(t, "")
	})
}

// What is answered, and what is logged, in place of the handler.
func TestRefusals(t *testing.T) {
	broken := errors.New("the slug's table is gone")
	part := func(parts []string, err error) httplock.Part {
		return func(*http.Request) ([]string, error) { return parts, err }
	}
	for what, tt := range map[string]struct {
		part    httplock.Part
		opts    []httplock.Option
		prepare func(t *testing.T, b *servertest.Bubble, api, task *replica) (undo func())
		status  int
		retry   string
		detail  string
		took    time.Duration
		log     string
	}{
		"busy":         {prepare: busy(), status: 409, retry: "1", detail: "in progress", took: 100 * time.Millisecond},
		"busy, Wait":   {prepare: busy(), opts: []httplock.Option{httplock.WithBusy(httplock.Wait(2 * time.Second))}, status: 409, retry: "1", detail: "in progress", took: 2 * time.Second},
		"busy, no":     {prepare: busy(), opts: []httplock.Option{httplock.WithBusy(httplock.Policy{})}, status: 409, retry: "1", detail: "in progress"},
		"by the lease": {prepare: busy(), opts: []httplock.Option{httplock.WithBusy(httplock.Wait(0).RetryAfterLease())}, status: 409, retry: "15", detail: "in progress"},
		"by the lease, by hand": {prepare: busy(), opts: []httplock.Option{httplock.WithBusy(httplock.Wait(0).RetryAfterLease()),
			httplock.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) { httplock.Respond(w, r, fmt.Errorf("%w", err)) })},
			status: 409, retry: "15", detail: "in progress"},
		"a limit":               {prepare: busy(holdfast.WithLimit(1)), opts: []httplock.Option{httplock.WithLimit(3)}, status: 429, retry: "1", detail: "maximum number", took: 100 * time.Millisecond},
		"busy, and fail open":   {prepare: busy(), opts: []httplock.Option{httplock.WithFailOpen()}, status: 409, retry: "1", detail: "in progress", took: 100 * time.Millisecond},
		"a handler that logs":   {prepare: busy(), opts: []httplock.Option{httplock.WithErrorHandler(func(http.ResponseWriter, *http.Request, error) {})}, status: 409, retry: "1", detail: "in progress", took: 100 * time.Millisecond},
		"a silent Redis":        {prepare: silent, status: 503, retry: "5", detail: "could not be taken", took: time.Second, log: "level=ERROR msg=\"httplock: a request was refused\" method=GET host=example.com path=/orders/42 err="},
		"shut down":             {prepare: down, opts: []httplock.Option{httplock.WithFailOpen()}, status: 503, retry: "5", detail: "could not be taken", log: "a request was refused"},
		"nothing":               {part: part(nil, nil), status: 400, detail: "nothing"},
		"an empty value":        {part: part([]string{"a", ""}, nil), status: 400, detail: "an empty value"},
		"an invalid value":      {part: part(nil, fmt.Errorf("no such: %w", holdfast.ErrInvalid)), status: 400, detail: "does not name"},
		"no header":             {part: httplock.Header("Order"), status: 400, detail: `no header "Order"`},
		"no query parameter":    {part: httplock.Query("q"), status: 400, detail: `no query parameter "q"`},
		"no body":               {part: httplock.JSON("id"), status: 400, detail: "no body"},
		"a part's own error":    {part: part(nil, broken), status: 500, detail: "could not be determined", log: "the slug's table is gone"},
		"a part without Redis":  {part: part(nil, holdfast.ErrUnavailable), opts: []httplock.Option{httplock.WithFailOpen()}, status: 503, retry: "5", detail: "could not be taken", log: "a request was refused"},
		"no such path value":    {part: httplock.Path("typo"), status: 500, detail: "could not be determined", log: `httplock: Path(\"typo\"): the pattern \"/orders/{id}\" has no such value: use one`},
		"half a path value":     {part: httplock.Path("i"), status: 500, detail: "could not be determined", log: `use one that it has`},
		"no value in context":   {part: httplock.Context(name("user")), status: 500, detail: "could not be determined", log: `Context(\"user\") is not set: put the middleware`},
		"an empty context":      {part: httplock.Context(name("none")), status: 500, detail: "could not be determined", log: `Context(\"none\") is an empty string: refuse`},
		"a list in the context": {part: httplock.Context(name("list")), status: 500, detail: "could not be determined", log: `Context(\"list\") has type []int: set a string`},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				log := logged(t)
				api, task := newReplica(t, b), newReplica(t, b)
				if tt.part == nil {
					tt.part = byID
				}
				if tt.prepare != nil {
					defer tt.prepare(t, b, api, task)()
				}
				values := func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						ctx := context.WithValue(context.WithValue(r.Context(), name("none"), ""), name("list"), []int{1})
						next.ServeHTTP(w, r.WithContext(ctx))
					})
				}
				h := route(never(t), values, httplock.Middleware(api.Locker, "order", tt.part, tt.opts...))
				begin := time.Now()
				w := get(h, "/orders/42")
				wantTook(t, begin, tt.took)
				wantProblem(t, w, tt.status, tt.retry, tt.detail)
				log.want(t, tt.log)
			})
		})
	}
}

func busy(opts ...holdfast.CallOption) func(*testing.T, *servertest.Bubble, *replica, *replica) func() {
	return func(t *testing.T, _ *servertest.Bubble, _, task *replica) func() {
		return hold(t, task, "order:42", opts...)
	}
}

func silent(_ *testing.T, _ *servertest.Bubble, api, _ *replica) func() {
	api.link.CutUp()
	return api.link.Heal
}

func down(_ *testing.T, _ *servertest.Bubble, api, _ *replica) func() {
	_ = api.Shutdown(context.Background())
	return func() {}
}

func TestKeysFollowTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		for _, tt := range []struct {
			part httplock.Part
			want string
		}{
			{byID, holdfast.Key("order", "a/b")},
			{httplock.Query("q"), holdfast.Key("order", "1")},
			{httplock.Header("x-order"), holdfast.Key("order", "h1")},
			{httplock.Header("idempotency-key"), holdfast.Key("order", "8e03978e")},
			{httplock.Context(userKey{}), holdfast.Key("order", "7")},
			{httplock.JSON("data", "id"), holdfast.Key("order", "9")},
			{httplock.Body(func(b []byte) ([]string, error) { return []string{fmt.Sprint(len(b))}, nil }), holdfast.Key("order", "17")},
			{httplock.Parts(byID, httplock.JSON("data", "id")), holdfast.Key("order", "a/b", "9")},
			{func(r *http.Request) ([]string, error) { return []string{r.Pattern}, nil }, holdfast.Key("order", "/orders/{id}")},
		} {
			const body = `{"data":{"id":9}}`
			var key, read string
			user := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, 7)))
				})
			}
			h := route(func(w http.ResponseWriter, r *http.Request) {
				key = lockOf(r).Key()
				text, err := io.ReadAll(r.Body)
				read = fmt.Sprint(string(text), err)
			}, user, httplock.Middleware(api.Locker, "order", tt.part))
			req := httptest.NewRequest(http.MethodPost, "/orders/a%2Fb?q=1&q=2", strings.NewReader(body))
			wantStatus(t, send(h, req, "X-Order", "h1", "X-Order", "h2", "Idempotency-Key", `"8e03978e"`), http.StatusOK)
			if key != tt.want || read != body+"<nil>" {
				t.Errorf("got key %q, and the handler read %q; want %q", key, read, tt.want)
			}
		}
	})
}

// In front of the mux nothing has a path value yet.
func TestPathInFrontOfTheMux(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log := logged(t)
		api := newReplica(t, b)
		wantStatus(t, get(httplock.Middleware(api.Locker, "order", byID)(route(never(t))), "/orders/42"), http.StatusInternalServerError)
		log.want(t, "put the middleware behind the mux")
		empty := httptest.NewRequest(http.MethodGet, "/", nil) // a value that is there, and empty
		// :id is Echo's.
		for pattern, status := range map[string]int{"/orders/{id...}": 400, "/orders/:id": 400, "/orders/:id/pay": 400, "/orders/:ids": 500, "/orders/id": 500} {
			empty.Pattern = pattern
			wantStatus(t, send(httplock.Middleware(api.Locker, "order", byID)(never(t)), empty), status)
		}
	})
}

func TestLossOfTheLock(t *testing.T) {
	for name, tt := range map[string]struct {
		handle func(http.ResponseWriter, *http.Request)
		opts   []httplock.Option
		status int
		body   string // "" for problem details
	}{
		"without a response": {handle: func(http.ResponseWriter, *http.Request) {}, status: 503},
		"with a response":    {handle: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "half of it") }, status: 200, body: "half of it"},
		"with a status":      {handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }, status: 200, body: "-"},
		"flushed":            {handle: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, status: 200, body: "-"},
		"copied":             {handle: func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, strings.NewReader("all")) }, status: 200, body: "all"},
		"respond":            {handle: func(w http.ResponseWriter, r *http.Request) { httplock.Respond(w, r, r.Context().Err()) }, status: 503},
		"an error handler": {handle: func(http.ResponseWriter, *http.Request) {}, status: 410, body: "lost",
			opts: []httplock.Option{httplock.WithFailOpen(), httplock.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, err error) {
				if errors.Is(err, holdfast.ErrLost) {
					w.WriteHeader(410)
					io.WriteString(w, "lost")
				}
			})}},
		"an error handler that must not see": {handle: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "half of it") }, status: 200, body: "half of it",
			opts: []httplock.Option{httplock.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, err error) { io.WriteString(w, "and more") })}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				log := logged(t)
				api := newReplica(t, b)
				h := route(func(w http.ResponseWriter, r *http.Request) {
					b.Redis.Del("order:42")
					<-r.Context().Done()
					if !errors.Is(context.Cause(r.Context()), holdfast.ErrLost) {
						t.Errorf("the context ended because of %v", context.Cause(r.Context()))
					}
					tt.handle(w, r)
				}, httplock.Middleware(api.Locker, "order", byID, tt.opts...))
				w := get(h, "/orders/42")
				if tt.body == "" {
					wantProblem(t, w, tt.status, "", "outcome is unknown")
				} else if w.Code != tt.status || tt.body != "-" && w.Body.String() != tt.body {
					t.Errorf("got %d %q, want %d %q", w.Code, w.Body, tt.status, tt.body)
				}
				log.want(t, "the lock was lost while its request ran")
			})
		})
	}
}

// Echo answers the error that a handler returns only behind the middleware, and through the handler's writer.
func TestLateAnswer(t *testing.T) {
	for want, handle := range map[string]func(http.ResponseWriter, *http.Request, *servertest.Bubble){
		"418 late":    func(http.ResponseWriter, *http.Request, *servertest.Bubble) {},
		"200 a, late": func(w http.ResponseWriter, _ *http.Request, _ *servertest.Bubble) { io.WriteString(w, "a, ") },
		"503": func(_ http.ResponseWriter, r *http.Request, b *servertest.Bubble) {
			b.Redis.Del("order:42")
			<-r.Context().Done()
		},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			logged(t)
			api := newReplica(t, b)
			var writer http.ResponseWriter
			late := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r)
					writer.WriteHeader(http.StatusTeapot)
					if n, err := io.WriteString(writer, "late"); n != 4 || err != nil {
						t.Error(n, err)
					}
				})
			}
			w := get(route(func(w http.ResponseWriter, r *http.Request) {
				writer = w
				handle(w, r, b)
			}, late, httplock.Middleware(api.Locker, "order", byID)), "/orders/42")
			if want == "503" {
				wantProblem(t, w, http.StatusServiceUnavailable, "", "outcome is unknown")
			} else if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestPanicReleasesAndGoesOn(t *testing.T) {
	for _, lose := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			logged(t)
			api := newReplica(t, b)
			h := route(func(http.ResponseWriter, *http.Request) {
				if lose {
					b.Redis.Del("order:42")
				}
				panic(http.ErrAbortHandler)
			}, httplock.Middleware(api.Locker, "order", byID))
			w := httptest.NewRecorder()
			func() {
				defer func() {
					if p := recover(); p != http.ErrAbortHandler {
						t.Errorf("the server got panic %v", p)
					}
				}()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/orders/42", nil))
			}()
			wantFree(t, b, "order:42")
			if w.Body.Len() > 0 {
				t.Errorf("after a panic the middleware has written %q", w.Body)
			}
		})
	}
}

func TestLockIsHeldUntilTheHandlerReturnsThoughTheClientIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log := logged(t)
		api := newReplica(t, b)
		entered, leave := make(chan struct{}), make(chan struct{})
		h := route(func(http.ResponseWriter, *http.Request) { close(entered); <-leave }, httplock.Middleware(api.Locker, "order", byID))
		ctx, gone := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { send(h, httptest.NewRequestWithContext(ctx, http.MethodGet, "/orders/42", nil)) })
		<-entered
		gone()
		time.Sleep(5 * time.Minute) // twenty leases
		wantLocked(t, b, "order:42")
		close(leave)
		all.Wait()
		wantFree(t, b, "order:42")
		log.want(t, "")
	})
}

func TestFailedReleaseLeavesTheResponseAloneAndIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log := logged(t)
		api := newReplica(t, b)
		h := route(func(http.ResponseWriter, *http.Request) { api.link.CutUp() }, httplock.Middleware(api.Locker, "order", byID))
		begin := time.Now()
		wantStatus(t, get(h, "/orders/42"), http.StatusOK)
		wantTook(t, begin, time.Second)
		log.want(t, "level=WARN msg=\"httplock: the release of a lock was not confirmed\"")
		api.link.Heal()
	})
}

// Each hook hears of its own case alone, and the log of none.
func TestTraceReplacesTheLog(t *testing.T) {
	for want, tt := range map[string]struct {
		before, during func(b *servertest.Bubble)
		opts           []httplock.Option
		status         int
		err            error
	}{
		"":           {status: 200},
		"refused":    {before: func(b *servertest.Bubble) { _ = b.Redis.Set("order:42", "somebody") }, status: 409, err: holdfast.ErrNotAcquired},
		"unlocked":   {before: cut, opts: []httplock.Option{httplock.WithFailOpen()}, status: 200, err: holdfast.ErrUnavailable},
		"lost":       {during: func(b *servertest.Bubble) { b.Redis.Del("order:42") }, status: 503, err: holdfast.ErrLost},
		"unreleased": {during: cut, status: 200, err: holdfast.ErrUnavailable},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			log := logged(t)
			api := newReplica(t, b)
			var seen []string
			hook := func(name string) func(*http.Request, error) {
				return func(r *http.Request, err error) {
					seen = append(seen, name)
					if r.PathValue("id") != "42" || !errors.Is(err, tt.err) {
						t.Errorf("%s of %s: %v", name, r.URL, err)
					}
				}
			}
			opts := append(tt.opts, httplock.WithTrace(&httplock.Trace{Refused: hook("refused"), Lost: hook("lost"), Unreleased: hook("unreleased"), Unlocked: hook("unlocked")}))
			if tt.before != nil {
				tt.before(b)
			}
			h := route(func(http.ResponseWriter, *http.Request) {
				if tt.during != nil {
					tt.during(b)
				}
				time.Sleep(time.Millisecond)
			}, httplock.Middleware(api.Locker, "order", byID, opts...))
			wantStatus(t, get(h, "/orders/42"), tt.status)
			if got := strings.Join(seen, " "); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			log.want(t, "")
			for _, link := range b.Links() {
				link.Heal()
			}
		})
	}
}

func cut(b *servertest.Bubble) {
	for _, link := range b.Links() {
		link.CutUp()
	}
}

// What one request has waited out of a silent Redis, the next ones need not.
func TestOneRequestWaitsForASilentRedis(t *testing.T) {
	for _, open := range []bool{true, false} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			logged(t)
			api := newReplica(t, b)
			status, opts := http.StatusServiceUnavailable, []httplock.Option(nil)
			if open {
				status, opts = http.StatusOK, append(opts, httplock.WithFailOpen())
			}
			h := route(ok, httplock.Middleware(api.Locker, "order", byID, opts...))
			wantStatus(t, get(h, "/orders/1"), http.StatusOK)
			api.link.CutUp()
			for i := range 100 {
				begin := time.Now()
				wantStatus(t, get(h, fmt.Sprint("/orders/", i%7)), status)
				if took := time.Since(begin); i == 0 && took != time.Second || i > 0 && took > 20*time.Millisecond {
					t.Errorf("fail open %v: request %d took %v", open, i, took)
				}
				time.Sleep(time.Duration(i*i%977) * time.Millisecond)
			}
			api.link.Heal()
		})
	}
}

// A limit, and shares of it: while requests of one user wait, those of another wait for two others at most.
func TestLimitAndShare(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		const work = 20 * time.Millisecond
		var mu sync.Mutex
		in := 0
		enter := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			if in += by; in > 2 {
				t.Error("more than two requests at once")
			}
		}
		serve := func() http.Handler {
			mw := httplock.Middleware(newReplica(t, b).Locker, "provider", byID, httplock.WithLimit(2),
				httplock.WithShare(httplock.Header("User")), httplock.WithBusy(httplock.Wait(time.Minute)))
			return route(func(w http.ResponseWriter, r *http.Request) { enter(1); time.Sleep(work); enter(-1) }, mw)
		}
		one, two := serve(), serve()
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() { wantStatus(t, get(one, "/orders/7", "User", "big"), http.StatusOK) })
		}
		for range 8 {
			time.Sleep(47 * time.Millisecond)
			sent := time.Now()
			wantStatus(t, get(two, "/orders/7", "User", "small"), http.StatusOK)
			if waited := time.Since(sent) - work; waited > 2*work {
				t.Errorf("waited for %v", waited)
			}
		}
		all.Wait()
		wantFree(t, b, "provider:7")
	})
}

func TestUploadsLeaveNoTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var upload bytes.Buffer
		form := multipart.NewWriter(&upload)
		file, err := form.CreateFormFile("f", "f.bin")
		if err != nil {
			t.Fatal(err)
		}
		file.Write(make([]byte, 1<<20))
		form.Close()
		mw := httplock.Middleware(api.Locker, "order", httplock.Query("id"))
		h := mw(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := r.ParseMultipartForm(1); err != nil {
				t.Error(err)
			}
			if files, _ := os.ReadDir(dir); len(files) == 0 {
				t.Error("the upload was kept in memory: this test tests nothing")
			}
		}))
		req := httptest.NewRequest(http.MethodPost, "/?id=1", &upload)
		req.Header.Set("Content-Type", form.FormDataContentType())
		wantStatus(t, send(h, req), http.StatusOK)
		if req.MultipartForm == nil {
			t.Fatal("net/http, which removes the files of this request, does not know of them")
		}
		_ = req.MultipartForm.RemoveAll()
		synctest.Wait()
	})
}
