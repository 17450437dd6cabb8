package ginlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// mebibyte is the largest body that JSON reads.
const mebibyte = 1 << 20

func TestJSONTakesAFieldOfTheBody(t *testing.T) {
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	for body, want := range map[string]string{ // "" for a refusal
		`{"id":"42"}`: "42",
		`{"id":42}`:   "42",
		` { "a" : [ {"id":1} ], "id" : "42" } ` + "\n": "42",
		`{"id":"\u0034\u0032"}`:                        "42",
		`{"i\u0064":"42"}`:                             "42",
		`{"id":42.0}`:                                  "42.0", // as written
		`{"id":-1e+2}`:                                 "-1e+2",
		`{"id":-0}`:                                    "0", // the same integer
		`{"id":12345678901234567890123}`:               "12345678901234567890123",
		`{"id":" 42 "}`:                                " 42 ",
		`{"id":"a:b/ü\n"}`:                             "a:b/ü\n",
		`{"x":{"id":1},"id":2,"y":{"id":3}}`:           "2",
		`{"idx":1,"i":3,"id":2,"":4}`:                  "2",

		``: "", ` `: "", `null`: "", `42`: "", `"id"`: "", `[]`: "", `[{"id":1}]`: "", `{}`: "", `{"x":{"id":1}}`: "", `{"idx":1}`: "",
		`{"id":""}`: "", `{"id":null}`: "", `{"id":true}`: "", `{"id":false}`: "", `{"id":[1]}`: "", `{"id":{"id":1}}`: "",
		`{"id":1,"id":null}`: "", `{"id":1,"id":{}}`: "", `{"id":1,"id":""}`: "", `{"id":1,"id":1}`: "", `{"id":{},"id":3}`: "",
		`{"ID":1}`: "", `{"id":1,"ID":2}`: "", `{"Id":1,"id":2}`: "", `{"x":1,"iD":3,"id":2}`: "",
		`{"id":1`: "", `{"id":1}}`: "", `{"id":1}{"id":2}`: "", `{"id":1},`: "", `{"id":1,}`: "", `{"id":01}`: "", `{"id":1;"a":2}`: "", `{id:1}`: "", `{'id':1}`: "",
		`{"id":1,"x":tru}`: "", `{"id":NaN}`: "", `{"id":"a}`: "", "{\"id\":\"a\nb\"}": "", "\ufeff{\"id\":1}": "", "id=42": "", "\x1f\x8b": "",
		`{"id":1,"x":` + deep + `}`: "",
	} {
		for _, sent := range []struct {
			how string
			req *http.Request
		}{
			{"with a length", httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))},
			{"in pieces", httptest.NewRequest(http.MethodPost, "/", iotest.OneByteReader(strings.NewReader(body)))},
			{"with the end", httptest.NewRequest(http.MethodPost, "/", iotest.DataErrReader(strings.NewReader(body)))},
		} {
			got, err := take(ginlock.JSON("id"), sent.req, nil)
			switch {
			case want == "" && !errors.Is(err, holdfast.ErrInvalid):
				t.Errorf("%.60q %s: got %q, %v, want ErrInvalid", body, sent.how, got, err)
			case want != "" && (err != nil || len(got) != 1 || got[0] != want):
				t.Errorf("%.60q %s: got %q, %v, want %q", body, sent.how, got, err, want)
			}
			if left, err := io.ReadAll(sent.req.Body); err != nil || string(left) != body {
				t.Errorf("%.60q %s: the handler reads %.60q, %v", body, sent.how, left, err)
			}
		}
	}
	if got, err := take(ginlock.JSON("s"), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"s":1,"ſ":2}`)), nil); err == nil {
		t.Errorf("got %q, and encoding/json finds 2", got)
	}
	for _, extra := range []int{0, 1} { // read by ShouldBindBodyWith before
		req := httptest.NewRequest(http.MethodPost, "/", nil)
		bound := map[string]any{gin.BodyBytesKey: []byte(`{"id":1}` + strings.Repeat(" ", mebibyte-8+extra))}
		if got, err := take(ginlock.JSON("id"), req, bound); (err != nil) != (extra == 1) {
			t.Errorf("bound before, and %d bytes too large: got %q, %v", extra, got, err)
		}
	}
	req, err := http.NewRequest(http.MethodPost, "/", nil) // the body is nil
	if err != nil {
		t.Fatal(err)
	}
	if got, err := take(ginlock.JSON("id"), req, nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("without a body: got %q, %v, want ErrInvalid", got, err)
	}
}

func TestJSONIsAnsweredByWhoseMistakeItIs(t *testing.T) {
	const body = `{"id":"42","note":"x"}`
	broken := errors.New("the disk is full")
	drain := func(c *gin.Context) { _, _ = io.Copy(io.Discard, c.Request.Body) }
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		for name, tt := range map[string]struct {
			body    io.Reader
			outside gin.HandlerFunc
			status  int
			detail  string
			seen    string // in c.Errors
			is      error
		}{
			"no body":              {nil, nil, http.StatusBadRequest, `no body`, "", holdfast.ErrInvalid},
			"no field":             {strings.NewReader(`{"i":1}`), nil, http.StatusBadRequest, `no field "id" in its body`, "", holdfast.ErrInvalid},
			"an empty field":       {strings.NewReader(`{"id":""}`), nil, http.StatusBadRequest, `an empty field "id"`, "", holdfast.ErrInvalid},
			"an object as a field": {strings.NewReader(`{"id":{}}`), nil, http.StatusBadRequest, `neither a string nor a number`, "", holdfast.ErrInvalid},
			"another case":         {strings.NewReader(`{"id":1,"Id":2}`), nil, http.StatusBadRequest, `a field "Id" in its body; only "id" is allowed, once`, "", holdfast.ErrInvalid},
			"no object":            {strings.NewReader(`[]`), nil, http.StatusBadRequest, `not a JSON object`, "", holdfast.ErrInvalid},
			"a body that breaks off": {io.MultiReader(strings.NewReader(`{"id":`), iotest.ErrReader(broken)), nil, http.StatusBadRequest,
				"did not arrive in full", "", broken},
			"too large a body": {strings.NewReader(`{"id":"42","x":"` + strings.Repeat("x", mebibyte) + `"}`), nil,
				http.StatusRequestEntityTooLarge, "too large", "", holdfast.ErrInvalid},
			"MaxBytesReader": {strings.NewReader(body), func(c *gin.Context) {
				c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, 20)
			}, http.StatusRequestEntityTooLarge, "too large", "", holdfast.ErrInvalid},
			"a body that was read": {strings.NewReader(body), drain, http.StatusInternalServerError, "could not be determined",
				"ginlock: the body has already been read: put", nil},
			"a body that was closed": {iotest.ErrReader(http.ErrBodyReadAfterClose), nil, http.StatusInternalServerError, "could not be determined",
				"ginlock: the body has already been read: put", nil},
		} {
			var errs errs
			var got error
			if tt.outside == nil {
				tt.outside = func(*gin.Context) {}
			}
			router := route(errs.watch, tt.outside, ginlock.New(api.Locker, "order", ginlock.JSON("id"),
				ginlock.WithErrorHandler(func(_ *gin.Context, err error) { got = err })), never(t))
			wantProblem(t, send(router, httptest.NewRequest(http.MethodPost, "/orders/1", tt.body)), tt.status, "", tt.detail)
			if tt.is != nil && !errors.Is(got, tt.is) || errors.Is(got, holdfast.ErrInvalid) != (tt.seen == "") {
				t.Errorf("%s: the error handler got %v", name, got)
			}
			if large := (*http.MaxBytesError)(nil); errors.As(got, &large) != (tt.status == http.StatusRequestEntityTooLarge) {
				t.Errorf("%s: got %v; is it a MaxBytesError?", name, got)
			}
			switch {
			case tt.seen == "":
				errs.want(t, nil)
			case len(errs.all) != 1 || !strings.HasPrefix(errs.all[0].Error(), tt.seen):
				t.Errorf("%s: c.Errors has %v, want %q", name, errs.all, tt.seen)
			}
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands sent for requests without a key", n)
		}
	})
}

// What JSON has read it puts back, also where it refuses: a part of one's own may try it, and then something else.
func TestJSONLeavesTheBodyAsItWas(t *testing.T) {
	broken := errors.New("broken")
	exact := `{"id":"42","x":"` + strings.Repeat("x", mebibyte-18) + `"}`
	if len(exact) != mebibyte {
		t.Fatal("the body has", len(exact), "bytes")
	}
	for name, tt := range map[string]struct {
		body    string
		end     error // what the original body ends with
		limit   int64 // of a MaxBytesReader in front
		refused bool
	}{
		"found":                 {`{"id":1}`, io.EOF, 0, false},
		"refused":               {`{"id":{}}`, io.EOF, 0, true},
		"empty":                 {``, io.EOF, 0, true},
		"the largest":           {exact, io.EOF, 0, false},
		"a byte too large":      {exact + " ", io.EOF, 0, true},
		"far too large":         {exact + exact + exact, io.EOF, 0, true},
		"too large, and broken": {exact + exact, broken, 0, true},
		"broken":                {`{"id":1}`, broken, 0, true},
		"broken at once":        {``, broken, 0, true},
		"cut short":             {`{"id":1,"x":2}`, io.EOF, 10, true},
		"just not cut short":    {`{"id":1,"x":2}`, io.EOF, 14, false},
	} {
		for i, part := range []ginlock.Part{ginlock.JSON("id"), ginlock.Parts(ginlock.JSON("id"), ginlock.JSON("id"), ginlock.JSON("none")),
			func(c *gin.Context) ([]string, error) { _, _ = ginlock.JSON("none")(c); return ginlock.JSON("id")(c) }} {
			original := &once{data: []byte(tt.body), end: tt.end}
			want, wantErr := tt.body, tt.end
			req := httptest.NewRequest(http.MethodPost, "/", io.Reader(original))
			req.Body = original
			if tt.limit > 0 {
				req.Body = http.MaxBytesReader(nil, original, tt.limit)
				if int64(len(want)) > tt.limit {
					want, wantErr = want[:tt.limit], nil
				}
			}
			_, err := take(part, req, nil)
			if refused := tt.refused || i == 1; refused != (err != nil) {
				t.Errorf("%s, part %d: got %v; is it refused? %v", name, i, err, refused)
			}
			got, err := io.ReadAll(req.Body)
			if string(got) != want {
				t.Errorf("%s: the handler reads %d bytes, want %d, or other ones", name, len(got), len(want))
			}
			if wantErr == nil {
				if large := (*http.MaxBytesError)(nil); !errors.As(err, &large) || large.Limit != tt.limit {
					t.Errorf("%s: the handler's reading ends with %v, want a MaxBytesError", name, err)
				}
			} else if wantErr == io.EOF && err != nil || wantErr != io.EOF && err != wantErr {
				t.Errorf("%s: the handler's reading ends with %v, want %v", name, err, wantErr)
			}
			if n, err := req.Body.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("%s: behind the end: %d bytes, %v", name, n, err)
			}
			if err := req.Body.Close(); err != nil || original.closed != 1 {
				t.Errorf("%s: Close returned %v and has closed the original %d times", name, err, original.closed)
			}
		}
	}
}

// once is a body that returns its error once, and then as if nothing had been.
type once struct {
	data   []byte
	end    error
	ended  bool
	closed int
}

func (o *once) Read(p []byte) (int, error) {
	if len(o.data) == 0 {
		if o.ended {
			return 0, io.EOF
		}
		o.ended = true
		return 0, o.end
	}
	n := copy(p, o.data)
	o.data = o.data[n:]
	return n, nil
}

func (o *once) Close() error { o.closed++; return nil }

func TestJSONBodyReachesTheHandler(t *testing.T) {
	type order struct {
		Account string `json:"account_id"`
		Lines   []int  `json:"lines"`
	}
	const body = `{"lines":[1,2],"account_id":"42"}`
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		account := ginlock.New(api.Locker, "account", ginlock.JSON("account_id"))
		bindWith := func(c *gin.Context) {
			var o order
			if err := c.ShouldBindBodyWith(&o, binding.JSON); err != nil || len(o.Lines) != 2 {
				t.Errorf("ShouldBindBodyWith: %+v, %v", o, err)
			}
		}
		bind := func(c *gin.Context) {
			var o order
			if err := c.ShouldBindJSON(&o); err != nil || o.Account != "42" || len(o.Lines) != 2 {
				t.Errorf("ShouldBindJSON: %+v, %v", o, err)
			}
		}
		raw := func(c *gin.Context) {
			if got, err := c.GetRawData(); err != nil || string(got) != body {
				t.Errorf("GetRawData: %q, %v", got, err)
			}
			if err := c.Request.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		locked := func(c *gin.Context) {
			if held := holdfast.Held(c.Request.Context()); len(held) == 0 || held[0].Key() != "account:42" {
				t.Errorf("the request runs under %v", held)
			}
			wantLocked(t, b, "account:42")
			ok(c)
		}
		for name, chain := range map[string][]gin.HandlerFunc{
			"ShouldBindJSON":                      {account, bind, locked},
			"GetRawData":                          {account, raw, locked},
			"ShouldBindBodyWith inside":           {account, bindWith, bindWith, locked},
			"ShouldBindBodyWith outside":          {bindWith, account, bindWith, locked},
			"listed twice":                        {account, account, bind, locked},
			"with another field, and other parts": {ginlock.New(api.Locker, "order", ginlock.Parts(byID, ginlock.JSON("account_id"))), account, bind, locked},
			"unread":                              {account, locked},
		} {
			s := serve(t, route(chain...))
			for _, chunked := range []bool{false, true} {
				var r io.Reader = strings.NewReader(body)
				if chunked {
					r = io.MultiReader(r) // whose length net/http does not know
				}
				resp, err := s.Post("http://127.0.0.1/orders/1", "application/json", r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s, chunked %v: got %s", name, chunked, resp.Status)
				}
			}
			s.wantQuiet(t)
		}
		wantFree(t, b, "account:42")
	})
}

// The body comes first: a client that drips it keeps nobody else waiting, and is gone when it hangs up.
func TestJSONReadsTheBodyBeforeTheLockIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		var errs errs
		status := make(chan int, 1)
		s := serve(t, route(func(c *gin.Context) { c.Next(); status <- c.Writer.Status() }, errs.watch,
			ginlock.New(api.Locker, "order", ginlock.JSON("id")), never(t)))
		conn := s.dial(t)
		if _, err := io.WriteString(conn, "POST /orders/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"id\":42"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands sent before the body was there", n)
		}
		conn.Close()
		if got := <-status; got != http.StatusBadRequest {
			t.Errorf("the log has %d, want 400", got)
		}
		errs.want(t, nil)

		task := newReplica(t, b) // read in full, the body no longer hides from net/http that the client is gone
		defer hold(t, task, "order:42")()
		waiting := serve(t, route(func(c *gin.Context) { c.Next(); status <- c.Writer.Status() },
			ginlock.New(api.Locker, "order", ginlock.JSON("id"), ginlock.WithBusy(ginlock.Wait(time.Hour))), never(t)))
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/orders/1", strings.NewReader(`{"id":42}`))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := waiting.Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the client got %v", err)
		}
		if got := <-status; got != http.StatusConflict || time.Since(begin) != 3*time.Second {
			t.Errorf("got %d after %v, want 409 when the client left", got, time.Since(begin))
		}
	})
}

// The lock goes by the value that encoding/json gives the handler, or the request is refused.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"id":1}`, `{"id":"a","ID":"b"}`, `{"x":{"id":1},"id":2}`, `{"id":1,"id":null}`, `{"id":"\ud800"}`, `{"id":1} `, `{"id":1}1`,
		`[{"id":1}]`, `{"id":-0}`, `{"i\u0064":"\u0000"}`, "{\"id\":\"\xff\"}", `null`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		got, err := take(ginlock.JSON("id"), req, nil)
		if left, readErr := io.ReadAll(req.Body); readErr != nil || !bytes.Equal(left, body) {
			t.Fatalf("%q: the handler reads %q, %v", body, left, readErr)
		}
		var fields map[string]json.RawMessage
		var into struct {
			ID json.RawMessage `json:"id"`
		}
		valid := json.Unmarshal(body, &fields) == nil && json.Unmarshal(body, &into) == nil
		if err != nil {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Fatalf("%q: %v, want ErrInvalid", body, err)
			}
			text, ok := plain(fields["id"])
			for k := range fields {
				ok = ok && (k == "id" || !strings.EqualFold(k, "id"))
			}
			if valid && ok && text != "" {
				t.Fatalf("%q: refused with %v", body, err)
			}
			return
		}
		if !valid {
			t.Fatalf("%q: got %q, and encoding/json takes nothing", body, got)
		}
		for _, raw := range []json.RawMessage{fields["id"], into.ID} {
			if text, ok := plain(raw); !ok || len(got) != 1 || got[0] != text {
				t.Fatalf("%q: got %q, want %q, %v", body, got, text, ok)
			}
		}
	})
}

// plain is the text of a string or a number.
func plain(raw json.RawMessage) (string, bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		if v == "-0" {
			v = "0"
		}
		return v.String(), true
	}
	return "", false
}

// A part of the user's that reads the body leaves it for the handler, and is bounded as JSON is.
func TestBodyIsGivenToAFunction(t *testing.T) {
	broken := errors.New("broken")
	part := ginlock.Body(func(body []byte) ([]string, error) {
		if string(body) == "broken" {
			return nil, broken
		}
		return strings.Fields(string(body)), nil
	})
	for body, want := range map[string]string{"a b": "[a b] <nil>", "": "[] <nil>", "broken": "[] broken"} {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		got, err := take(part, req, nil)
		if s := fmt.Sprint(got, " ", err); s != want {
			t.Errorf("%q: got %s, want %s", body, s, want)
		}
		if left, err := io.ReadAll(req.Body); err != nil || string(left) != body {
			t.Errorf("%q: the handler reads %q, %v", body, left, err)
		}
	}
	large := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", mebibyte+1)))
	if got, err := take(part, large, nil); !errors.As(err, new(*http.MaxBytesError)) {
		t.Errorf("too large: got %d, %v", len(got), err)
	}
	for name, part := range map[string]ginlock.Part{"no path": ginlock.JSON(), "no name": ginlock.JSON("data", ""), "no function": ginlock.Body(nil)} {
		if part != nil {
			t.Errorf("%s: got a part", name)
		}
	}
	path := []string{"data", "id"}
	part = ginlock.JSON(path...)
	path[1] = "x" // the part keeps its own
	if got, err := take(part, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"id":1,"data":{"id":2,"x":3}}`)), nil); err != nil || len(got) != 1 || got[0] != "2" {
		t.Errorf("a path: got %q, %v", got, err)
	}
}
