package servertest

import (
	"context"
	"strings"
	"testing"
)

func TestReplicaHasWhatItsMasterHas(t *testing.T) {
	ctx := context.Background()
	master := Redis(t)
	rdb := master.Client()
	rdb.Set(ctx, "before", "1", 0)
	replica := Replica(t, master).Client()
	if got := replica.Get(ctx, "before").Val(); got != "1" {
		t.Errorf("what was there before the replica: got %q, want 1", got)
	}
	rdb.Set(ctx, "after", "2", 0)
	eventually(t, "the next write arrives", func() bool { return replica.Get(ctx, "after").Val() == "2" })
}

func TestCutReplicationLetsNothingThrough(t *testing.T) {
	ctx := context.Background()
	master := Redis(t)
	rdb := master.Client()
	rdb.Set(ctx, "k", "replicated", 0)
	replica := Replica(t, master)
	replica.CutReplication(t)
	rdb.Set(ctx, "k", "not replicated", 0)
	// Time alone would not show that it cannot come back.
	eventually(t, "the replica has tried to come back", func() bool {
		return strings.Contains(rdb.Info(ctx, "commandstats").Val(), "cmdstat_auth")
	})
	if got := replica.Client().Get(ctx, "k").Val(); got != "replicated" {
		t.Errorf("behind the cut: got %q, want what was there before it", got)
	}
}
