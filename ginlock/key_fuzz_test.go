package ginlock

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// asked is what a request says, in all the places that a key is made of.
type asked struct{ tenant, id, header, query string }

// keyed is a router that makes keys and takes no locks.
type keyed struct {
	*gin.Engine
	key string
	err error
}

func newKeyed(scoped bool) *keyed {
	gin.SetMode(gin.TestMode)
	k := &keyed{Engine: gin.New()}
	k.UseRawPath = true // so that a parameter can be a slash
	part := Parts(Param("tenant"), Parts(Param("id"), Header("X-Tenant")), Query("q"))
	if scoped {
		route := func(c *gin.Context) ([]string, error) { return []string{c.Request.Method, c.FullPath()}, nil }
		part = Parts(route, part)
	}
	read := func(c *gin.Context) {
		locks, err := wiring.Named([]target{{Resource: "order", Part: part}}, nil, c, unnamed)
		k.key, k.err = strings.Join(locks.Keys, " "), err
	}
	for _, route := range []string{"/orders/:tenant/:id", "/invoices/:tenant/:id"} {
		k.POST(route, read)
		k.PUT(route, read)
	}
	return k
}

// of is the key of a request, "" where it has none.
func (k *keyed) of(t *testing.T, method, base string, a asked) string {
	t.Helper()
	req := &http.Request{
		Method: method, Header: http.Header{"X-Tenant": {a.header}},
		URL: &url.URL{
			Path:     base + "/" + a.tenant + "/" + a.id,
			RawPath:  base + "/" + url.QueryEscape(a.tenant) + "/" + url.QueryEscape(a.id), // as gin reads it: + is a space
			RawQuery: "q=" + url.QueryEscape(a.query),
		},
	}
	k.key, k.err = "", errors.New("no such route")
	w := httptest.NewRecorder()
	k.ServeHTTP(w, req)
	full := a.tenant != "" && a.id != "" && a.header != "" && a.query != ""
	if full != (k.err == nil) {
		t.Fatalf("%+v: got key %q, %v", a, k.key, k.err)
	}
	var refusal *keyError
	if k.err != nil && w.Code == http.StatusOK && (!errors.As(k.err, &refusal) || !errors.Is(k.err, holdfast.ErrInvalid)) {
		t.Fatalf("%+v: got %v, want ErrInvalid", a, k.err)
	}
	if len(k.key) > 256 || !utf8.ValidString(k.key) || strings.ContainsAny(k.key, "{}\x00~ \n") {
		t.Fatalf("%+v: unusable key %q", a, k.key)
	}
	return k.key
}

// Two requests have the same key where they say the same, in the same places, and where the route is a part, to the same route.
func FuzzKeys(f *testing.F) {
	long := strings.Repeat("x", 300)
	for _, s := range [][8]string{
		{"a", "b", "c", "d", "a", "b", "c", "d"}, {"a:b", "c", "d", "e", "a", "b:c", "d", "e"}, {"a", "b", "c:d", "e", "a", "b", "c", "d:e"},
		{"a%3Ab", "c", "d", "e", "a:b", "c", "d", "e"}, {"A", "b", "c", "d", "a", "b", "c", "d"}, {"a", "b ", "c", "d", "a", "b", "c", "d"},
		{"a\x00", "b", "c", "d", "a", "\x00b", "c", "d"}, {"{a}", "b", "c", "d", "a", "{b}", "c", "d"}, {long, "b", "c", "d", long + "x", "b", "c", "d"},
		{"a/b", "c", "d", "e", "a", "b/c", "d", "e"}, {"\xff", "b", "c", "d", "\xfe", "b", "c", "d"}, {"é", "b", "c", "d", "e\u0301", "b", "c", "d"},
		{"", "b", "c", "d", "a", "", "c", "d"}, {"a", "b", "", "d", "a", "b", "c", ""}, {"..", ".", "c", "d", ".", "..", "c", "d"},
		{"a", "b", "orders", "POST", "POST", "/orders/:tenant/:id", "a", "b"}, {"a+b", "c", "d", "e;f", "a b", "c", "d", "e&f"},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], byte(0))
		f.Add(s[0], s[1], s[2], s[3], s[0], s[1], s[2], s[3], byte(0b0001)) // another method
		f.Add(s[0], s[1], s[2], s[3], s[0], s[1], s[2], s[3], byte(0b1000)) // another route
	}
	plain, scoped := newKeyed(false), newKeyed(true)
	methods, bases := [2]string{http.MethodPost, http.MethodPut}, [2]string{"/orders", "/invoices"}
	f.Fuzz(func(t *testing.T, a, b, c, d, e, g, h, i string, routes byte) {
		one, two := asked{a, b, c, d}, asked{e, g, h, i}
		m1, m2 := methods[routes&1], methods[routes>>1&1]
		p1, p2 := bases[routes>>2&1], bases[routes>>3&1]
		if k1, k2 := plain.of(t, m1, p1, one), plain.of(t, m2, p2, two); k1 != "" && (k1 == k2) != (one == two) {
			t.Errorf("%+v has key %q, %+v %q", one, k1, two, k2)
		}
		k1, k2 := scoped.of(t, m1, p1, one), scoped.of(t, m2, p2, two)
		if k1 != "" && (k1 == k2) != (one == two && m1 == m2 && p1 == p2) {
			t.Errorf("%s %s %+v has key %q, %s %s %+v %q", m1, p1, one, k1, m2, p2, two, k2)
		}
		// The key is the one that everybody else makes of the same words.
		if want := holdfast.Key("order", a, b, c, d); k1 != "" && plain.of(t, m1, p1, one) != want {
			t.Errorf("%+v has key %q, want %q", one, plain.key, want)
		}
	})
}
