package holdfast_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestLineScripts(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rdb := servertest.NewBubble(t).Client()
			for _, row := range lineRows {
				row.run(t, rdb)
			}
		})
	})
	t.Run("server", func(t *testing.T) {
		rdb := servertest.Redis(t).Client()
		for _, row := range lineRows {
			row.run(t, rdb)
		}
	})
}

// What the scripts make of a line that is not as they left it, on miniredis and on a real server.

// joinArgs are those of an acquire of owner that waits in line and looks by itself.
func joinArgs(owner string) []any {
	args := acquireArgs(owner, 15_000)
	args[2] = "{k}:~gone:" + owner
	args[6] = args[6].(string) + " 5000 3000 1: 1 -"
	return args
}

type lineRow struct {
	name  string
	seed  func(r *lineRun)
	call  holdfast.Script
	args  []any
	reply string // a pattern for its beginning; "error" for one
	lock  string // whose it is then
	line  string // the waiters then
}

type lineRun struct {
	t   *testing.T
	rdb *redis.Client
}

func (r *lineRun) do(args ...any) {
	r.t.Helper()
	if err := r.rdb.Do(background, args...).Err(); err != nil {
		r.t.Fatalf("%v: %v", args, err)
	}
}

// join has owners wait in line behind holder.
func (r *lineRun) join(owners ...string) {
	r.t.Helper()
	for _, owner := range owners {
		if _, err := holdfast.AcquireScript.Run(background, r.rdb, joinArgs(owner)...); err != nil {
			r.t.Fatal(err)
		}
	}
}

var lineRows = []lineRow{
	{name: "release: to the first", seed: func(r *lineRun) { r.join("me", "a", "b") },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", lock: "a", line: "[b]"},
	{name: "release: the order is lost", seed: func(r *lineRun) { r.join("me", "a", "b"); r.do("DEL", lineKey) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", line: "[]"},
	{name: "release: it is not known who they are", seed: func(r *lineRun) { r.join("me", "a", "b"); r.do("DEL", waitKey) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", line: "[]"},
	{name: "release: one of them is not known", seed: func(r *lineRun) { r.join("me", "a", "b"); r.do("HDEL", waitKey, "a") },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", lock: "b", line: "[]"},
	{name: "release: a damaged entry", seed: func(r *lineRun) { r.join("me", "a", "b"); r.do("HSET", waitKey, "a", "1 2 3") },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", lock: "b", line: "[]"},
	{name: "release: to one that lets several hold it, and one behind that does not", seed: func(r *lineRun) {
		r.join("me", "a", "b")
		entry := r.rdb.HGet(background, waitKey, "a").Val()
		r.do("HSET", waitKey, "a", strings.Replace(entry, " 1 1 1: 1 -", " 1 3 1: 1 -", 1))
	},
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", lock: "=a", line: "[b]"},
	{name: "release: stood in line twice", seed: func(r *lineRun) { r.join("me", "a", "b"); r.do("ZADD", lineKey, 0, " 0000000000000001a") },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", lock: "a", line: "[b]"},
	{name: "release: the line is of another type", seed: func(r *lineRun) { r.join("me"); r.do("SET", lineKey, "x", "PX", 9000) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1"},
	{name: "release: what is known is of another type", seed: func(r *lineRun) { r.join("me", "a"); r.do("SET", waitKey, "x", "PX", 9000) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", line: "[a]"},
	{name: "leave: the line is of another type", seed: func(r *lineRun) { r.join("you"); r.do("SET", lineKey, "x", "PX", 9000) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 0, 9000), reply: "0", lock: "you"},
	{name: "leave: what is known is of another type", seed: func(r *lineRun) { r.join("you"); r.do("SET", waitKey, "x", "PX", 9000) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 0, 9000), reply: "0", lock: "you", line: "[]"},

	{name: "acquire: the first has it", seed: func(r *lineRun) { r.join("you", "a"); r.do("DEL", "k") },
		call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: `\[0 3000 a 0 `, lock: "a", line: "[]"},
	{name: "acquire: free, the order is lost", seed: func(r *lineRun) { r.join("you", "a"); r.do("DEL", "k", lineKey) },
		call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: `\d{15,16}$`, lock: "me", line: "[]"},
	{name: "acquire: free, the line is of another type", seed: func(r *lineRun) { r.do("SET", lineKey, "x", "PX", 9000) },
		call: holdfast.AcquireScript, args: acquireArgs("me", 5000), reply: "error"},
	{name: "join: the line is of another type", seed: func(r *lineRun) { r.join("you"); r.do("SET", lineKey, "x", "PX", 9000) },
		call: holdfast.AcquireScript, args: joinArgs("me"), reply: "error", lock: "you"},
	{name: "join: what is known is of another type", seed: func(r *lineRun) { r.join("you"); r.do("SET", waitKey, "x", "PX", 9000) },
		call: holdfast.AcquireScript, args: joinArgs("me"), reply: "error", lock: "you", line: "[]"},
	{name: "join: the order is lost", seed: func(r *lineRun) { r.join("you", "a", "me"); r.do("DEL", lineKey) },
		call: holdfast.AcquireScript, args: joinArgs("me"), reply: `\[0 1\d{4} you 1 `, lock: "you", line: "[me]"},
	{name: "join: again", seed: func(r *lineRun) { r.join("you", "a", "me", "b") },
		call: holdfast.AcquireScript, args: joinArgs("me"), reply: `\[0 1\d{4} you 2 .* 0\]$`, lock: "you", line: "[a me b]"},
	{name: "join: nobody listens", seed: func(r *lineRun) { r.join("you") },
		call: holdfast.AcquireScript, args: toldArgs("me", 1), reply: `\[0 1\d{4} you 1 .* 1\]$`, lock: "you", line: "[me]"},
	{name: "join: nobody listens, as far as one of several servers knows", seed: func(r *lineRun) { r.join("you") },
		call: holdfast.AcquireScript, args: toldArgs("me", 0), reply: `\[0 1\d{4} you 1 .* 0\]$`, lock: "you", line: "[me]"},
	{name: "join: scripts may not publish", seed: func(r *lineRun) { r.join("you", "a"); r.mute(10_000) },
		call: holdfast.AcquireScript, args: toldArgs("me", 0), reply: `\[0 1\d{4} you 2 .* 2\]$`, lock: "you", line: "[a me]"},
	{name: "join: scripts could not publish long ago", seed: func(r *lineRun) { r.join("you", "a"); r.mute(-10_000) },
		call: holdfast.AcquireScript, args: toldArgs("me", 0), reply: `\[0 1\d{4} you 2 .* 0\]$`, lock: "you", line: "[a me]"},
	{name: "release: scripts may not publish", seed: func(r *lineRun) { r.join("me"); r.told("a"); r.join("b"); r.mute(10_000) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", lock: "b", line: "[a]"},
	{name: "release: scripts may not publish, and nobody looks", seed: func(r *lineRun) { r.join("me"); r.told("a"); r.mute(10_000) },
		call: holdfast.ForgetScript, args: forgetArgs("me", 1, 0), reply: "1", line: "[a]"},
}

// toldArgs is for a waiter that names an inbox where nobody listens.
func toldArgs(owner string, counted int) []any {
	args := acquireArgs(owner, 15000)
	args[6] = fmt.Sprint(args[6], " 5000 3000 1: ", counted, " nobody's")
	return args
}

// told is join for one owner that names an inbox.
func (r *lineRun) told(owner string) {
	r.t.Helper()
	if _, err := holdfast.AcquireScript.Run(background, r.rdb, toldArgs(owner, 0)...); err != nil {
		r.t.Fatal(err)
	}
}

// mute has scripts count as such that may not publish for ms from now on.
func (r *lineRun) mute(ms int64) {
	r.t.Helper()
	r.do("HSET", waitKey, "mute", r.rdb.Time(background).Val().UnixMilli()+ms)
}

func (row lineRow) run(t *testing.T, rdb *redis.Client) {
	t.Helper()
	r := &lineRun{t, rdb}
	r.do("FLUSHALL")
	row.seed(r)
	got, err := row.call.Run(background, rdb, row.args...)
	text := fmt.Sprint(got)
	if err != nil {
		text = "error"
	}
	if !regexp.MustCompile("^" + row.reply).MatchString(text) {
		t.Errorf("%s: got %v, %v, want %s", row.name, got, err, row.reply)
	}
	if lock := rdb.Get(background, "k").Val(); lock != row.lock {
		t.Errorf("%s: %q has the lock, want %q", row.name, lock, row.lock)
	}
	if row.line != "" {
		if line := fmt.Sprint(lineOf(rdb)); line != row.line {
			t.Errorf("%s: the line is %s, want %s", row.name, line, row.line)
		}
	}
	fence := rdb.Get(background, fenceKey).Val()
	if n := rdb.ZCard(background, lineKey).Val(); n > 0 && fence != "" && !strings.HasSuffix(fence, " w") {
		t.Errorf("%s: %d wait, and the fence does not say so: %q", row.name, n, fence)
	}
	for _, key := range rdb.Keys(background, "*").Val() {
		if rdb.PTTL(background, key).Val() < 0 {
			t.Errorf("%s: %s never expires", row.name, key)
		}
	}
}
