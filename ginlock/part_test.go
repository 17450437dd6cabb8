package ginlock_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// take applies part to a request without a router.
func take(part ginlock.Part, req *http.Request, values map[string]any) ([]string, error) {
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = req
	for k, v := range values {
		c.Set(k, v)
	}
	return part(c)
}

// keyOf sends a request through a middleware of part and returns the key it ran under, or "" for a 400.
func keyOf(t *testing.T, api *replica, part ginlock.Part, req *http.Request, opts ...ginlock.Option) (key string) {
	t.Helper()
	router := gin.New()
	router.UseRawPath = true // so that a parameter can be a slash
	setAccount := func(c *gin.Context) { c.Set("account", 7) }
	router.Any("/orders/:tenant/:id", setAccount, ginlock.New(api.Locker, "order", part, opts...), func(c *gin.Context) {
		key = lockOf(c).Key()
		ok(c)
	})
	w := send(router, req)
	if key == "" {
		wantProblem(t, w, http.StatusBadRequest, "", "")
	}
	return key
}

func TestKeysFollowTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		param, tenant := ginlock.Param("id"), ginlock.Param("tenant")
		shout := func(c *gin.Context) ([]string, error) { return []string{strings.ToUpper(c.Param("id"))}, nil }
		route := func(c *gin.Context) ([]string, error) { return []string{c.Request.Method, c.FullPath()}, nil }
		long := strings.Repeat("x", 3000)
		for _, tt := range []struct {
			part   ginlock.Part
			target string
			opts   []ginlock.Option
			want   string
		}{
			{param, "/orders/a/b", nil, holdfast.Key("order", "b")},
			{param, "/orders/a/b%2Fc", nil, holdfast.Key("order", "b/c")},
			{param, "/orders/a/" + long, nil, holdfast.Key("order", long)},
			{shout, "/orders/a/b", nil, holdfast.Key("order", "B")},
			{ginlock.Query("q"), "/orders/a/b?q=1&q=2", nil, holdfast.Key("order", "1")},
			{ginlock.Query("q"), "/orders/a/b?p=1", nil, ""},
			{ginlock.Query("q"), "/orders/a/b?q=", nil, ""},
			{ginlock.Header("x-order"), "/orders/a/b", nil, holdfast.Key("order", "h1")},
			{ginlock.Header("x-none"), "/orders/a/b", nil, ""},
			{ginlock.Value("account"), "/orders/a/b", nil, holdfast.Key("order", "7")},
			{ginlock.Parts(tenant, param), "/orders/a/b", nil, holdfast.Key("order", "a", "b")},
			{ginlock.Parts(tenant, ginlock.Parts(param, shout)), "/orders/a/b", nil, holdfast.Key("order", "a", "b", "B")},
			{ginlock.Parts(tenant, ginlock.Query("q")), "/orders/a/b", nil, ""},
			{ginlock.Parts(route, param), "/orders/a/b", nil, holdfast.Key("order", "GET", "/orders/:tenant/:id", "b")},
		} {
			req := httptest.NewRequest(http.MethodGet, tt.target, nil)
			req.Header.Add("X-Order", "h1")
			req.Header.Add("X-Order", "h2")
			if got := keyOf(t, api, tt.part, req, tt.opts...); got != tt.want {
				t.Errorf("%.40s: got key %q, want %q", tt.target, got, tt.want)
			}
		}
	})
}

func TestKeysThatMustDifferDo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		both := ginlock.Parts(ginlock.Param("tenant"), ginlock.Param("id"))
		long := strings.Repeat("x", 300)
		seen := map[string]string{}
		for _, path := range []string{
			"a:b/c", "a/b:c", "a%253Ab/c", "a%2Fb/c", "a/b%2Fc", "A/b", "a/b", "a/b%20", "a/%20b", "a%00/b", "a/%00b",
			"%7Ba%7D/b", "a/%7Bb%7D", long + "/b", long + "x/b", long + "/xb",
		} {
			key := keyOf(t, api, both, httptest.NewRequest(http.MethodGet, "/orders/"+path, nil))
			if other, ok := seen[key]; ok || key == "" {
				t.Errorf("%.40s and %.40s have the same key %q", path, other, key)
			}
			seen[key] = path
		}
	})
}

func TestIdempotencyKeyIsUnquoted(t *testing.T) {
	for _, tt := range []struct{ field, value, want string }{ // "" for a refusal
		{"idempotency-key", `"8e03978e"`, "8e03978e"},
		{"Idempotency-Key", `8e03978e`, "8e03978e"},
		{"Idempotency-Key", `"a \"b"`, `a \"b`},
		{"Idempotency-Key", `"a`, `"a`},
		{"Idempotency-Key", `"`, `"`},
		{"Idempotency-Key", `""`, ""},
		{"Idempotency-Key", ``, ""},
		{"X-Quoted", `"a"`, `"a"`},
	} {
		req := httptest.NewRequest(http.MethodPost, "/", nil)
		req.Header.Set(tt.field, tt.value)
		got, err := take(ginlock.Header(tt.field), req, nil)
		if tt.want == "" {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%q: got %q, %v, want ErrInvalid", tt.value, got, err)
			}
		} else if err != nil || len(got) != 1 || got[0] != tt.want {
			t.Errorf("%q: got %q, %v, want %q", tt.value, got, err, tt.want)
		}
	}
}

type named string

type stringer struct{ n int }

func (s stringer) String() string {
	if s.n == 0 {
		return ""
	}
	return fmt.Sprint("no. ", s.n)
}

func TestValueTakesWhatHasOneText(t *testing.T) {
	req := httptest.NewRequest(http.MethodPost, "/", nil)
	for _, tt := range []struct {
		value any
		want  string
	}{
		{"a", "a"}, {named("n"), "n"}, {42, "42"}, {int64(-1), "-1"}, {uint8(7), "7"}, {stringer{3}, "no. 3"},
		{&stringer{3}, "no. 3"}, {http.StatusOK, "200"},
	} {
		got, err := take(ginlock.Value("v"), req, map[string]any{"v": tt.value})
		if err != nil || len(got) != 1 || got[0] != tt.want {
			t.Errorf("%T %v: got %q, %v, want %q", tt.value, tt.value, got, err, tt.want)
		}
	}
	n := 1
	for _, v := range []any{nil, "", named(""), stringer{}, 1.5, &n, struct{ id int }{1}, []byte("a"), errors.New("x"), true} { // all are the server's doing
		if got, err := take(ginlock.Value("v"), req, map[string]any{"v": v}); err == nil || errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%T: got %q, %v, want an error that is not ErrInvalid", v, got, err)
		}
	}
}
