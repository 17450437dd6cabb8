package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// table is the rows that ls printed, by their first field.
func (r result) table(t *testing.T) map[string][]string {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	if !strings.HasPrefix(lines[0], "KEY ") {
		t.Fatalf("no table: %v", r)
	}
	all := map[string][]string{}
	for _, line := range lines[1:] {
		fields := strings.Split(strings.Join(strings.FieldsFunc(strings.ReplaceAll(line, "  ", "\x00"), func(r rune) bool { return r == 0 }), "\x00"), "\x00")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		all[fields[0]] = fields[1:]
	}
	return all
}

func (r result) rows(t *testing.T) map[string]row {
	t.Helper()
	var all []row
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil || r.status != 0 {
		t.Fatalf("%v: %v", err, r)
	}
	by := map[string]row{}
	for _, one := range all {
		by[one.Key] = one
	}
	return by
}

const rivalValue = "q83vEjRWeJCrze8SNFZ4kA==" // as redsync has it

func TestListTellsOfEveryKindOfLock(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		l := newLocker(t, rdb)
		lock := acquire(t, l, "order:1", holdfast.WithLabel("api 1"))
		wait(t, rdb, "order:1", "w1", 1)
		wait(t, rdb, "order:1", "w2", 2)
		acquire(t, l, "{shop}order:2")
		freed := acquire(t, l, "{order:3}")
		if err := freed.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		odd := []string{"\x1b[31mred", "\xff\xfe", "with \"space\"", "a{b", "é"}
		for _, key := range odd {
			acquire(t, l, key)
		}
		rdb.Set(t.Context(), "rival", rivalValue, time.Minute)
		wait(t, rdb, "rival", "w", 1)
		rdb.Set(t.Context(), "rival:alone", rivalValue, 0)
		long := acquire(t, l, "long", holdfast.WithLabel("leader"))
		rdb.Del(t.Context(), "{long}:~fence") // as after a TTL and a minute
		rdb.Set(t.Context(), "cache:1", "a value of the application, which is none of ours", time.Minute)
		rdb.LPush(t.Context(), "list", "x")
		rdb.Set(t.Context(), "looks:~like", "x", 0)

		var r result
		var got map[string][]string
		until(t, "both lines are seen", func() bool { // a place in line that was not refreshed for 5 s is given up
			r = play(t, addr, "ls")
			got = r.table(t)
			return len(got["order:1"]) == 6 && got["order:1"][5] == "2: w1, w2" && len(got["rival"]) == 6 && got["rival"][5] == "1: w"
		})
		token := fmt.Sprint(lock.Token())
		for key, want := range map[string][]string{
			"order:1":   {"held", `"api 1"`, token, "?", "?", "2: w1, w2"},
			"{order:3}": {"free", "-", fmt.Sprint(freed.Token()), "-", "-", "0"},
			"rival":     {"foreign", rivalValue, "-", "-", "?", "1: w"},
			"é":         {"held", "-", "?", "?", "?", "0"},
		} {
			if !slices.EqualFunc(got[key], want, func(a, b string) bool { return a == b || b == "?" && a != "-" }) {
				t.Errorf("%s: got %q, want %q", key, got[key], want)
			}
		}
		keys := []string{"order:1", "{shop}order:2", "{order:3}", `"\x1b[31mred"`, `"\xff\xfe"`, `"with \"space\""`, "a{b", "é", "rival"}
		if slices.Sort(keys); r.status != 0 || !slices.Equal(slices.Sorted(maps.Keys(got)), keys) {
			t.Errorf("status %d, got %q, want %q", r.status, slices.Sorted(maps.Keys(got)), keys)
		}
		if strings.Contains(r.stdout, "\x1b") || strings.Contains(r.stdout, "\xff") {
			t.Errorf("bytes of a key went to the terminal: %q", r.stdout)
		}

		all := play(t, addr, "ls", "-all", "-json").rows(t)
		if len(all) != len(keys)+2 {
			t.Errorf("-all: %d keys, want %d", len(all), len(keys)+2)
		}
		if s := all["long"]; s.State != held || s.Label != "leader" || s.Token != 0 || s.LeftMS <= 0 || s.NoExpiry {
			t.Errorf("held for longer than its fence is remembered: %+v", s)
		}
		if s := all["rival:alone"]; s.State != foreign || s.Value != rivalValue || !s.NoExpiry {
			t.Errorf("of another library: %+v", s)
		}
		if s := all["order:1"]; s.Label != "api 1" || s.Token != lock.Token() || s.LeftMS <= 0 || s.LeftMS > time.Minute.Milliseconds() {
			t.Errorf("got %+v", s)
		}
		if s := all["\ufffd\ufffd"]; s.KeyBase64 != base64.StdEncoding.EncodeToString([]byte("\xff\xfe")) {
			t.Errorf("what is no UTF-8: %+v", all)
		}
		if err := long.Release(t.Context()); err != nil {
			t.Error(err)
		}

		for pattern, want := range map[string][]string{
			"order:*": {"order:1"}, "*order*": {"order:1", "{order:3}", "{shop}order:2"}, "{shop}*": {"{shop}order:2"}, "[\x1b-\x1c]*": {`"\x1b[31mred"`},
			"nothing": nil, "?": nil, "??": {`"\xff\xfe"`, "é"}, "a{?": {"a{b"}, "{order:3}": {"{order:3}"}, "order:3": nil, "fence": nil, "": nil,
		} {
			if got := slices.Sorted(maps.Keys(play(t, addr, "ls", pattern).table(t))); !slices.Equal(got, want) {
				t.Errorf("pattern %q: got %q, want %q", pattern, got, want)
			}
		}
		if got := play(t, addr, "ls", "-json", "nothing").stdout; got != "[]\n" {
			t.Errorf("no rows in JSON: %q", got)
		}
	})
}

// takeSeveral takes a lock with a limit, one as readers with a writer in line, and two by a call of DoAll that waits for a third.
func takeSeveral(t *testing.T, rdb *redis.Client) (first, reader *holdfast.Lock) {
	first = acquire(t, newLocker(t, rdb), "permits", holdfast.WithLabel("api 1"), holdfast.WithLimit(3))
	acquire(t, newLocker(t, rdb), "permits", holdfast.WithLabel("api-2"), holdfast.WithLimit(2))
	wait(t, rdb, "permits", "api-3", 1, holdfast.WithLimit(2))
	wait(t, rdb, "permits", "", 2, holdfast.WithLimit(4))
	reader = acquire(t, newLocker(t, rdb), "prices", holdfast.WithLabel("reader-1"), holdfast.WithShared())
	acquire(t, newLocker(t, rdb), "prices", holdfast.WithLabel("reader-1"), holdfast.WithShared())
	acquire(t, newLocker(t, rdb), "prices", holdfast.WithShared())
	wait(t, rdb, "prices", "writer", 1)
	wait(t, rdb, "prices", "reader-2", 2, holdfast.WithShared())

	acquire(t, newLocker(t, rdb), "c", holdfast.WithLabel("transfer 1"))
	l := newLocker(t, rdb)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.DoAll(ctx, []string{"c", "a", "b"}, func(context.Context) error { return nil }, holdfast.WithLabel("transfer 2"))
	}()
	t.Cleanup(func() { cancel(); <-done })
	return first, reader
}

func TestListNamesHoldersAndWaiters(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		first, reader := takeSeveral(t, rdb)
		local := func(l *holdfast.Lock) string { return clock(time.UnixMicro(l.Token()), time.Now()) }
		want := map[string][]string{
			"permits": {"held", `2 of 2: "api 1", api-2`, "?", local(first), "?", "2: api-3"},
			"prices":  {"held", "3 readers: reader-1", "?", local(reader), "?", "2: writer, reader-2"},
			"a":       {"held", `"transfer 2"`, "?", "?", "?", "0"},
			"b":       {"held", `"transfer 2"`, "?", "?", "?", "0"},
			"c":       {"held", `"transfer 1"`, "?", "?", "?", `1: "transfer 2"`},
		}
		var all map[string]row
		until(t, "all lines are seen", func() bool { // a place in line that was not refreshed for 5 s is given up
			got := play(t, addr, "ls").table(t)
			all = play(t, addr, "ls", "-json").rows(t)
			return len(all["permits"].Line) == 2 && len(all["prices"].Line) == 2 && maps.EqualFunc(got, want, func(a, b []string) bool {
				return slices.EqualFunc(a, b, func(a, b string) bool { return a == b || b == "?" && a != "-" })
			})
		})
		if m := all["permits"].Members; len(m) != 2 || m[0].Label != "api 1" || m[0].Limit != 3 || m[0].Token != first.Token() || m[0].LeftMS <= 0 || m[1].Limit != 2 || m[1].Shared {
			t.Errorf("permits: %+v", m)
		}
		if m := all["prices"].Members; len(m) != 3 || !m[2].Shared || m[2].Limit != 0 || all["prices"].Limit != 0 {
			t.Errorf("prices: %+v", m)
		}
		if l := all["prices"].Line; len(l) != 2 || l[0].Shared || l[0].Limit != 0 || l[1].Label != "reader-2" || !l[1].Shared {
			t.Errorf("prices: %+v in line", l)
		}
		if l := all["permits"].Line; len(l) != 2 || l[0].Limit != 2 || l[1].Limit != 4 || l[1].Label != "" {
			t.Errorf("permits: %+v in line", l)
		}
	})
}

// traffic is a hook that counts what is sent.
type traffic struct {
	single  map[string]int
	piped   map[string]int
	longest int
	scans   []string
}

// handshake tells what go-redis begins a connection with.
func handshake(cmd redis.Cmder) bool { return cmd.Name() == "hello" || cmd.Name() == "client" }

func (*traffic) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *traffic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !handshake(cmd) {
			h.single[cmd.Name()]++
		}
		if cmd.Name() == "scan" {
			h.scans = append(h.scans, fmt.Sprint(cmd.Args()[2:]))
		}
		return next(ctx, cmd)
	}
}

func (h *traffic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !handshake(cmds[0]) {
			h.longest = max(h.longest, len(cmds))
			for _, cmd := range cmds {
				h.piped[cmd.Name()]++
			}
		}
		return next(ctx, cmds)
	}
}

func TestServerWithTenThousandLocksIsScannedAndReadInPipelines(t *testing.T) {
	s := servertest.Redis(t)
	rdb := s.Client()
	const n = 10_000
	_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprint("k", i)
			pipe.Set(t.Context(), key, "AAECAwQFBgcICQoLDA0ODw:me", time.Hour)
			pipe.Set(t.Context(), "{"+key+"}:~fence", "70 70 70", time.Hour)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		scan string         // what is asked for
		want map[string]int // in pipelines
	}{
		{[]string{"ls", "-json", "-all"}, " count 500]", map[string]int{"evalsha": n, "getrange": n}},
		{[]string{"ls", "-json", "k77?"}, "match *k77?*:~* count 500]", map[string]int{"evalsha": 10}},
	} {
		var h *traffic
		s.ResetStats(t)
		r := playOn(t, func() redis.UniversalClient {
			h = &traffic{single: map[string]int{}, piped: map[string]int{}}
			client := redis.NewClient(&redis.Options{Addr: s.Addr()})
			client.AddHook(h)
			return client
		}, c.args...)
		if got := r.rows(t); len(got) != c.want["evalsha"] || got["k777"].Label != "me" || got["k777"].Token != 70 {
			t.Fatalf("%v: %d rows, one of them %+v", c.args, len(got), got["k777"])
		}
		if len(h.single) != 1 || h.single["scan"] < 2*n/scanCount/2 || h.longest > 128 {
			t.Errorf("%v: single commands %v, pipelines of up to %d, want SCAN only and at most 128", c.args, h.single, h.longest)
		}
		for _, scan := range h.scans {
			if !strings.HasSuffix(scan, c.scan) {
				t.Errorf("%v: SCAN %s, want %s", c.args, scan, c.scan)
			}
		}
		delete(h.piped, "eval") // of the first pipeline, which taught the server the script
		if !maps.Equal(h.piped, c.want) {
			t.Errorf("%v: in pipelines %v, want %v", c.args, h.piped, c.want)
		}
		stats := s.CommandStats(t)
		for _, command := range []string{"keys", "set", "del", "pexpire", "hset", "publish"} {
			if stats[command] != 0 {
				t.Errorf("%v: the server ran %s", c.args, command)
			}
		}
	}
}

func TestListLooksAtEveryMasterOfACluster(t *testing.T) {
	a, b := miniredis.RunT(t), miniredis.RunT(t)
	addrA, addrB := a.Addr(), b.Addr()
	client := func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: addrA}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrB}}},
				}, nil
			},
			MaxRetries: -1,
		})
	}
	rdb := client()
	defer rdb.Close()
	l := newLocker(t, rdb)
	// CRC16: "foo" is slot 12182, "bar" 5061
	for _, key := range []string{"foo", "bar", "{foo}1", "{bar}1"} {
		acquire(t, l, key, holdfast.WithLabel("me"))
	}
	if !a.Exists("bar") || !b.Exists("foo") {
		t.Fatal("the keys are not where they should be")
	}
	got := playOn(t, client, "ls").table(t)
	if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, []string{"bar", "foo", "{bar}1", "{foo}1"}) {
		t.Errorf("got %q", keys)
	}
	for _, key := range []string{"foo", "bar"} {
		if r := playOn(t, client, "show", key); r.status != 0 || !strings.Contains(r.stdout, "me") {
			t.Errorf("%s: %v", key, r)
		}
	}
	b.SetError("LOADING for ever")
	r := playOn(t, client, "ls")
	if keys := slices.Sorted(maps.Keys(r.table(t))); r.status != 69 || !slices.Equal(keys, []string{"bar", "{bar}1"}) || !strings.Contains(r.stderr, "LOADING") {
		t.Errorf("with one of the masters away: %v", r)
	}
	b.SetError("")
}

func TestServerClusterByURL(t *testing.T) {
	t.Parallel() // a Cluster takes two seconds to come up
	s := servertest.Redis(t, "--cluster-enabled", "yes")
	if err := s.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	rdb, err := connect("redis+cluster://" + s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	until(t, "the cluster is up", func() bool {
		return strings.Contains(s.Client().ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	acquire(t, newLocker(t, rdb), "k", holdfast.WithLabel("me"))
	acquire(t, newLocker(t, rdb), "prices", holdfast.WithLabel("me"), holdfast.WithShared())
	wait(t, rdb, "prices", "writer", 1)
	until(t, "it is seen in line", func() bool {
		got := play(t, "redis+cluster://"+s.Addr(), "ls").table(t)["prices"]
		return got[1] == "1 reader: me" && got[5] == "1: writer"
	})
	s.ResetStats(t)
	for _, args := range [][]string{{"ls"}, {"ls", "-all"}, {"show", "k"}} {
		if r := play(t, "redis+cluster://"+s.Addr(), args...); r.status != 0 || !strings.Contains(r.stdout, "me") {
			t.Errorf("%v: %v", args, r)
		}
	}
	if stats := s.CommandStats(t); stats["multi"] != 1 {
		t.Errorf("%d transactions for one key, which is to be shown as it was at one moment", stats["multi"])
	}
}

func TestKeysThatCannotBeReadAreRowsToo(t *testing.T) {
	s := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	lock := acquire(t, newLocker(t, rdb), "bad")
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	acquire(t, newLocker(t, rdb), "good", holdfast.WithLabel("me"))
	rdb.LPush(t.Context(), "bad", "x")
	r := play(t, s.Addr(), "ls")
	got := r.table(t)
	if r.status != 69 || got["bad"][0] != failed || got["good"][1] != "me" || !strings.Contains(r.stderr, "WRONGTYPE") {
		t.Errorf("got %v", r)
	}
}
