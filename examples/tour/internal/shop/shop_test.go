package shop

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/core"
)

func embedded(t *testing.T) *Servers {
	t.Helper()
	servers, err := OpenServers(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	})
	return servers
}

func TestRepeatedOrderIsSoldOnce(t *testing.T) {
	books, closeBooks, err := embedded(t).Books(t.Context(), "shop", []string{"lamp", "tent"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closeBooks(); err != nil {
			t.Error(err)
		}
	}()
	server := httptest.NewServer((&shop{replica: "replica-1", books: books, charge: Pay}).routes())
	defer server.Close()
	for range 2 {
		a := &Answer{Order: "o1", Product: "lamp"}
		if _, err := Ask(t.Context(), server.Client(), server.URL, a); err != nil || a.Verdict != Bought || a.Serial != 3 {
			t.Errorf("got %+v, %v, want unit 3", a, err)
		}
	}
	got, err := books.Ledger(t.Context())
	want := []Sale{{Order: "o1", Product: "lamp", Serial: 3, Replica: "replica-1"}}
	if err != nil || got.Stock["lamp"] != 2 || got.Stock["tent"] != 3 || !slices.Equal(got.Sales, want) {
		t.Errorf("got %+v, %v, want 2 lamps left and %+v", got, err, want)
	}
}

// Without it, a replica that crashed would hold its locks in the embedded Redis for ever.
func TestEmbeddedRedisLetsLeasesEnd(t *testing.T) {
	rdb := redis.NewClient(embedded(t).Redis)
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "product:lamp", "crashed", 100*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lock, err := locker.Acquire(ctx, holdfast.Key("product", "lamp"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := locker.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
