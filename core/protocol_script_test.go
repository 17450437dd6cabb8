package holdfast_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestEveryReplyOfEveryScript(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rdb := servertest.NewBubble(t).Client()
			for _, row := range scriptRows {
				row.run(t, rdb)
			}
		})
	})
	t.Run("server", func(t *testing.T) {
		rdb := servertest.Redis(t).Client()
		for _, row := range scriptRows {
			row.run(t, rdb)
		}
	})
}

// Every reply of every script, on miniredis and on a real server. A row of seeds sets the keys before the
// call; * in a wanted value stands for anything. T is the server's clock in µs, to add to.
type scriptRow struct {
	name  string
	seeds []string // "key=value" with a life of 10 s, "key=value!" without expiry, "key:list" of another type
	call  holdfast.Script
	args  []any
	reply string   // as fmt prints it; "token" for a token at the server's clock
	after []string // "key=value" or "key-" for absent
	ttls  []string // "key 8s 10s": between
}

var scriptRows = []scriptRow{
	{name: "acquire: free", call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "token",
		after: []string{"k=me", fenceKey + "=*"}, ttls: []string{"k 4s 5s", fenceKey + " 64s 65s"}},
	{name: "acquire: held", seeds: []string{"k=you"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "[0 10000 you 0 time  0]",
		after: []string{"k=you", fenceKey + "-"}, ttls: []string{"k 9s 10s"}},
	{name: "acquire: held for ever", seeds: []string{"k=you!"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "[0 -1 you 0 time  0]"},
	{name: "acquire: held by a value that begins alike", seeds: []string{"k=me2"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "[0 10000 me2 0 time  0]"},
	{name: "acquire: held by an empty value", seeds: []string{"k="}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "[0 10000  0 time  0]"},
	{name: "acquire: again, shorter", seeds: []string{"k=me", fenceKey + "=70 70 70"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "70",
		after: []string{"k=me", fenceKey + "=70 70 70"}, ttls: []string{"k 9s 10s"}},
	{name: "acquire: again, longer", seeds: []string{"k=me", fenceKey + "=70 70 70"}, call: holdfast.AcquireScript, args: acquireArgs("me", 15000), reply: "70",
		ttls: []string{"k 14s 15s"}},
	{name: "acquire: again, without expiry", seeds: []string{"k=me!", fenceKey + "=70 70 70"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "70",
		ttls: []string{"k 4s 5s"}},
	{name: "acquire: again, the fence was lost", seeds: []string{"k=me"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "token",
		after: []string{"k=me"}, ttls: []string{"k 9s 10s"}},
	{name: "acquire: undone", seeds: []string{goneKey + "=1"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "-1",
		after: []string{"k-", fenceKey + "-"}},
	{name: "acquire: tokens go on from the last", seeds: []string{fenceKey + "=9007199254740000 0 9007199254730000"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "9007199254740001",
		after: []string{fenceKey + "=9007199254740001 9007199254740001 9007199254730000"}},
	{name: "acquire: the last token", seeds: []string{fenceKey + "=9007199254740990 0 1"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "9007199254740991"},
	{name: "acquire: no token left", seeds: []string{fenceKey + "=9007199254740991 0 1"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "-2", after: []string{"k-"}},
	{name: "acquire: the tenure before was lost", seeds: []string{fenceKey + "=70 70 50 60"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "token",
		after: []string{fenceKey + "=* * 50 60 70"}},
	{name: "acquire: too many were lost", seeds: []string{fenceKey + "=70 70 5 10 11 12 13 14 15 16 17"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "token",
		after: []string{fenceKey + "=* * 11 11 12 13 14 15 16 17 70"}},
	{name: "acquire: lock of another type", seeds: []string{"k:list"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "WRONGTYPE"},
	{name: "acquire: fence of another type", seeds: []string{fenceKey + ":list"}, call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "WRONGTYPE", after: []string{"k-"}},

	{name: "forget: held", seeds: []string{"k=me", fenceKey + "=70 70 50 60"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "1",
		after: []string{"k-", goneKey + "-", fenceKey + "=70 0 50 60"}, ttls: []string{fenceKey + " 9s 10s"}},
	{name: "forget: held, another token", seeds: []string{"k=me", fenceKey + "=70 70 50 60"}, call: holdfast.ForgetScript, args: forgetArgs("me", 65, 0), reply: "1",
		after: []string{"k-", fenceKey + "=70 0 50 60"}, ttls: []string{fenceKey + " 59s 60s"}},
	{name: "forget: held again, after the token named was lost", seeds: []string{"k=me", fenceKey + "=70 70 50 60"}, call: holdfast.ForgetScript, args: forgetArgs("me", 60, 0), reply: "0",
		after: []string{"k-", fenceKey + "=70 0 50 60"}, ttls: []string{fenceKey + " 59s 60s"}},
	{name: "forget: held, tainted", seeds: []string{"k=me", fenceKey + "=70 70 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 9000), reply: "1",
		after: []string{"k-", goneKey + "=1"}, ttls: []string{goneKey + " 8s 9s"}},
	{name: "forget: held, token never learned", seeds: []string{"k=me", fenceKey + "=70 70 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 0, 9000), reply: "1",
		after: []string{"k-", fenceKey + "=70 0 50"}},
	{name: "forget: held, fence expired", seeds: []string{"k=me"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "1",
		after: []string{"k-", fenceKey + "=70 0 70"}, ttls: []string{fenceKey + " 59s 60s"}},
	{name: "forget: held, fence ahead of the clock", seeds: []string{"k=me", fenceKey + "=9007199254740000 9007199254740000 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 0, 0), reply: "1",
		after: []string{fenceKey + "=9007199254740000 0 50"}, ttls: []string{fenceKey + " 1000000h 2500000h"}},
	{name: "forget: held, fence expired, token never learned", seeds: []string{"k=me"}, call: holdfast.ForgetScript, args: forgetArgs("me", 0, 0), reply: "1",
		after: []string{"k-", fenceKey + "-"}},
	{name: "forget: held, fence of another type", seeds: []string{"k=me", fenceKey + ":list"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "1", after: []string{"k-"}},
	{name: "forget: released before", seeds: []string{fenceKey + "=70 0 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "2"},
	{name: "forget: released before, others since", seeds: []string{"k=you", fenceKey + "=99 99 50 80"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "2",
		after: []string{"k=you", fenceKey + "=99 99 50 80"}},
	{name: "forget: lost, nobody since", seeds: []string{fenceKey + "=70 70 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "0"},
	{name: "forget: lost, a foreign holder", seeds: []string{"k=you", fenceKey + "=70 70 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "0", after: []string{"k=you"}},
	{name: "forget: lost, others since", seeds: []string{"k=you", fenceKey + "=99 99 50 70 80"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "0", after: []string{"k=you"}},
	{name: "forget: lost, another type", seeds: []string{"k:list", fenceKey + "=70 70 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "0"},
	{name: "forget: older than the record", seeds: []string{fenceKey + "=99 99 80"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "3"},
	{name: "forget: newer than the record", seeds: []string{fenceKey + "=60 0 50"}, call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "3"},
	{name: "forget: no record", call: holdfast.ForgetScript, args: forgetArgs("me", 70, 0), reply: "3", after: []string{"k-", goneKey + "-", fenceKey + "-"}},
	{name: "forget: undo of what never came", seeds: []string{"k=you"}, call: holdfast.ForgetScript, args: forgetArgs("me", 0, 9000), reply: "0",
		after: []string{"k=you", goneKey + "=1"}},
	{name: "forget: a value that begins alike", seeds: []string{"k=me2"}, call: holdfast.ForgetScript, args: forgetArgs("me", 0, 0), reply: "0", after: []string{"k=me2"}},

	{name: "renew: longer", seeds: []string{"k=me"}, call: holdfast.RenewScript, args: []any{"k", "me", 20000}, reply: "20000", ttls: []string{"k 19s 20s"}},
	{name: "renew: shorter", seeds: []string{"k=me"}, call: holdfast.RenewScript, args: []any{"k", "me", 5000}, reply: "10000", ttls: []string{"k 9s 10s"}},
	{name: "renew: ask", seeds: []string{"k=me"}, call: holdfast.RenewScript, args: []any{"k", "me", 0}, reply: "10000", ttls: []string{"k 9s 10s"}},
	{name: "renew: without expiry", seeds: []string{"k=me!"}, call: holdfast.RenewScript, args: []any{"k", "me", 5000}, reply: "5000", ttls: []string{"k 4s 5s"}},
	{name: "renew: ask, without expiry", seeds: []string{"k=me!"}, call: holdfast.RenewScript, args: []any{"k", "me", 0}, reply: "-1"},
	{name: "renew: another owner", seeds: []string{"k=me2"}, call: holdfast.RenewScript, args: []any{"k", "me", 20000}, reply: "0", ttls: []string{"k 9s 10s"}},
	{name: "renew: free", call: holdfast.RenewScript, args: []any{"k", "me", 20000}, reply: "0", after: []string{"k-"}},
	{name: "renew: another type", seeds: []string{"k:list"}, call: holdfast.RenewScript, args: []any{"k", "me", 20000}, reply: "0"},

	{name: "inspect: free", call: holdfast.InspectScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "[ -2 0 0 0]"},
	{name: "inspect: free, remembered", seeds: []string{fenceKey + "=70 0 50"}, call: holdfast.InspectScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "[ -2 70 0 0]"},
	{name: "inspect: held", seeds: []string{"k=me", fenceKey + "=70 70 50"}, call: holdfast.InspectScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "[me 10000 70 0 0]"},
	{name: "inspect: held for ever", seeds: []string{"k=me!"}, call: holdfast.InspectScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "[me -1 0 0 0]"},
	{name: "inspect: another type", seeds: []string{"k:list"}, call: holdfast.InspectScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "WRONGTYPE"},
	{name: "ping: free", call: holdfast.PingScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "[ -2 0 0 0]", after: []string{"k-", fenceKey + "-"}},
	{name: "ping: held", seeds: []string{"k=me", fenceKey + "=70 70 50"}, call: holdfast.PingScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "[me 10000 70 0 0]",
		after: []string{"k=me"}, ttls: []string{"k 9s 10s"}},
	{name: "ping: another type", seeds: []string{"k:list"}, call: holdfast.PingScript, args: []any{"k", fenceKey, lineKey, heldKey}, reply: "WRONGTYPE"},
}

func (row scriptRow) run(t *testing.T, rdb *redis.Client) {
	t.Helper()
	fail := func(format string, args ...any) { t.Errorf(row.name+": "+format, args...) }
	must := func(err error) {
		if err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
	}
	must(rdb.FlushAll(background).Err())
	for _, seed := range row.seeds {
		if key, ok := strings.CutSuffix(seed, ":list"); ok {
			must(rdb.LPush(background, key, "x").Err())
			continue
		}
		i := strings.LastIndexByte(seed, '=')
		key, value, life := seed[:i], seed[i+1:], 10*time.Second
		if v, ok := strings.CutSuffix(value, "!"); ok {
			value, life = v, 0
		}
		must(rdb.Set(background, key, value, life).Err())
	}
	before, err := rdb.Time(background).Result()
	must(err)
	got, err := row.call.Run(background, rdb, row.args...)
	switch token, _ := got.(int64); {
	case row.reply == "WRONGTYPE":
		if !contains(err, "WRONGTYPE") {
			fail("got %v, %v, want WRONGTYPE", got, err)
		}
	case err != nil:
		fail("%v", err)
	case row.reply == "token":
		if token < before.UnixMicro() || token > before.Add(time.Second).UnixMicro() {
			fail("token %d, the server's clock is %d", token, before.UnixMicro())
		}
	case !near(fmt.Sprint(got), row.reply):
		fail("got %v, want %s", got, row.reply)
	}
	for _, want := range row.after {
		if key, ok := strings.CutSuffix(want, "-"); ok {
			if rdb.Exists(background, key).Val() != 0 {
				fail("%s is there: %q", key, rdb.Get(background, key).Val())
			}
			continue
		}
		i := strings.LastIndexByte(want, '=')
		got := rdb.Get(background, want[:i]).Val()
		if !matches(got, want[i+1:]) {
			fail("%s is %q, want %q", want[:i], got, want[i+1:])
		}
	}
	for _, want := range row.ttls {
		f := strings.Fields(want)
		lo, _ := time.ParseDuration(f[1])
		hi, _ := time.ParseDuration(f[2])
		if got := rdb.PTTL(background, f[0]).Val(); got < lo || got > hi {
			fail("%s expires in %v, want %v to %v", f[0], got, lo, hi)
		}
	}
	// Whatever was not seeded without expiry must expire.
	for _, key := range rdb.Keys(background, "*").Val() {
		if rdb.PTTL(background, key).Val() < 0 && !strings.Contains(strings.Join(row.seeds, " "), key) {
			fail("%s never expires", key)
		}
	}
}

// near compares replies; a time left of 10000 ms may have run a little.
func near(got, want string) bool {
	pattern := strings.Replace(regexp.QuoteMeta(want), "10000", `(10000|99\d\d)`, 1)
	pattern = strings.NewReplacer("time", `\d{15,16}`, "token", `\d{15,16}`).Replace(pattern)
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}

// matches compares fields, * in want stands for any.
func matches(got, want string) bool {
	if want == "*" {
		return got != ""
	}
	g, w := strings.Fields(got), strings.Fields(want)
	if len(g) != len(w) {
		return false
	}
	for i := range w {
		if w[i] != "*" && g[i] != w[i] {
			return false
		}
	}
	return true
}
