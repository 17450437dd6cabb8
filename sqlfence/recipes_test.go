package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

// setFenced keeps a value, and the token of its writer beside it. It returns the larger one of the two tokens that met.
var setFenced = redis.NewScript(`
local last = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if last > tonumber(ARGV[1]) then return last end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
return tonumber(ARGV[1])`)

func writeRedis(ctx context.Context, rdb redis.Scripter, key string, token int64, value string) error {
	last, err := setFenced.Run(ctx, rdb, []string{key}, token, value).Int64()
	if err == nil && last > token {
		err = &sqlfence.StaleError{Resource: key, Token: token, Current: last}
	}
	return err
}

// shipOrder is the other service's handler.
func shipOrder(fence *sqlfence.Fence, db *sql.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
		if err != nil {
			http.Error(w, "no Fencing-Token", http.StatusBadRequest)
			return
		}
		ctx := sqlfence.Mark{Resource: holdfast.Key("order", id), Token: token}.In(r.Context())
		err = fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'shipped' WHERE id = $1", id)
			return err
		})
		switch {
		case errors.Is(err, sqlfence.ErrStale):
			http.Error(w, "a newer holder was here", http.StatusConflict)
		case errors.Is(err, holdfast.ErrInvalid): // a token that cannot be one
			http.Error(w, "no Fencing-Token", http.StatusBadRequest)
		case err != nil:
			http.Error(w, "not shipped", http.StatusInternalServerError)
		}
	}
}

func TestRecipeForRedis(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	for _, step := range []struct {
		token, stale int64
		value, want  string
	}{
		{token: 9, value: "new", want: "new"},
		{token: 10, value: "paid", want: "paid"}, // as texts, 9 would be larger
		{token: 10, value: "packed", want: "packed"},
		{token: 9, stale: 10, value: "late", want: "packed"},
		{token: 1<<53 - 2, value: "shipped", want: "shipped"},
		{token: 1<<53 - 1, value: "closed", want: "closed"},
		{token: 1<<53 - 2, stale: 1<<53 - 1, value: "late", want: "closed"},
	} {
		err := writeRedis(t.Context(), rdb, "data:order:42", step.token, step.value)
		var stale *sqlfence.StaleError
		switch {
		case step.stale == 0 && err != nil:
			t.Errorf("token %d: %v", step.token, err)
		case step.stale != 0 && (!errors.As(err, &stale) || stale.Current != step.stale || !errors.Is(err, holdfast.ErrLost)):
			t.Errorf("token %d: got %v, want stale because of %d", step.token, err, step.stale)
		}
		if got := server.HGet("data:order:42", "value"); got != step.want {
			t.Errorf("after token %d: got %q, want %q", step.token, got, step.want)
		}
	}
}

func TestRecipeForServices(t *testing.T) {
	_, db := newFake()
	defer db.Close()
	fence, err := sqlfence.New(sqlfence.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/ship", shipOrder(fence, db))
	for _, step := range []struct {
		id, token string
		want      int
	}{
		{"42", "7", http.StatusOK},
		{"42", "7", http.StatusOK},
		{"42", "6", http.StatusConflict},
		{"43", "6", http.StatusOK},
		{"42", "", http.StatusBadRequest},
		{"42", "0", http.StatusBadRequest},
		{"42", "9007199254740992", http.StatusBadRequest}, // nobody would come after it
		{"42", "8", http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodPost, "/orders/"+step.id+"/ship", nil)
		r.Header.Set("Fencing-Token", step.token)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != step.want {
			t.Errorf("order %s, token %q: got %d %s, want %d", step.id, step.token, w.Code, w.Body, step.want)
		}
	}
}

// TestRecipesAreThisCode compares the paper with the functions that the tests above call. That for S3 is in
// internal/sqltest/storetest, and that for rows in internal/sqltest.
func TestRecipesAreThisCode(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\r\n", "\n")
	}
	paper, source := read("RECIPES.md"), read("recipes_test.go")
	tested := 0
	for _, section := range strings.Split(paper, "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(section, -1)
		switch {
		case len(blocks) != 1:
			t.Errorf("%s: %d pieces of code, want one", title, len(blocks))
		case strings.Contains(section, "Not run") || strings.Contains(section, "internal/sqltest"):
		case !strings.Contains(source, blocks[0][1]):
			t.Errorf("%s: no test runs\n%s", title, blocks[0][1])
		default:
			tested++
		}
	}
	if tested != 2 {
		t.Errorf("the tests here are of %d recipes, want 2", tested)
	}
}
