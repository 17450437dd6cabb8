package main

import (
	"context"
	"testing"
	"time"
)

// One that does not renew would look cheap.
func TestKeepersSeeThatLocksAreLost(t *testing.T) {
	t.Parallel()
	target := newTestTarget(t)
	for _, e := range keepers {
		if e.most > 0 { // it keeps the processors from the others
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			k, err := e.open(t.Context(), target.addr)
			if err != nil {
				t.Fatal(err)
			}
			key, other := "k:"+e.name, "other:"+e.name
			for _, key := range []string{key, other} {
				if err := k.hold(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			if got := k.lost(); got != 0 {
				t.Errorf("at first: got %d lost, want 0", got)
			}
			if err := target.rdb.Del(t.Context(), key, "rueidislock:0:"+key).Err(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for k.lost() != 1 {
				if err := pause(ctx, 20*time.Millisecond); err != nil {
					t.Fatalf("got %d lost, want 1 of the two", k.lost())
				}
			}
			// Its lease becomes shorter and shorter, until somebody renews it.
			left := func() time.Duration {
				return max(target.rdb.PTTL(ctx, other).Val(), target.rdb.PTTL(ctx, "rueidislock:0:"+other).Val())
			}
			for last := left(); ; last = left() {
				if err := pause(ctx, 20*time.Millisecond); err != nil {
					t.Fatal(err)
				}
				now := left()
				if now > last {
					break
				}
				if now <= 0 {
					t.Fatal("nobody renewed the other one")
				}
			}
			if err := k.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
