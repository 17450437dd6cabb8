package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// output is what a run has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// result is what a run of the program came to.
type result struct {
	status         int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("status %d\n--- stdout\n%s--- stderr\n%s", r.status, r.stdout, r.stderr)
}

// play runs the program in this process, on the Redis at addr; again where a busy machine kept a pipeline waiting for
// more than the second that InspectAll grants it.
func play(t *testing.T, addr string, args ...string) result {
	t.Helper()
	return playWith(t, connect, addr, args...)
}

// playOn runs it with a client of the test's.
func playOn(t *testing.T, client func() redis.UniversalClient, args ...string) result {
	t.Helper()
	return playWith(t, func(string) (redis.UniversalClient, error) { return client(), nil }, "", args...)
}

func playWith(t *testing.T, connect func(string) (redis.UniversalClient, error), addr string, args ...string) result {
	t.Helper()
	env := map[string]string{"REDIS_URL": addr}
	for end := time.Now().Add(hang); ; {
		var stdout, stderr output
		a := &app{stdout: &stdout, stderr: &stderr, getenv: func(k string) string { return env[k] }, connect: connect}
		status := a.run(t.Context(), args)
		r := result{status, stdout.String(), stderr.String()}
		if !strings.Contains(r.stderr, "no answer in time") || time.Now().After(end) {
			return r
		}
	}
}

// onServers runs a test on miniredis and on a real server.
func onServers(t *testing.T, test func(t *testing.T, addr string, rdb *redis.Client)) {
	t.Run("miniredis", func(t *testing.T) {
		addr := miniredis.RunT(t).Addr()
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		test(t, addr, rdb)
	})
	t.Run("server", func(t *testing.T) {
		s := servertest.Redis(t)
		test(t, s.Addr(), s.Client())
	})
}

// newLocker is a process that takes locks, until the end of the test.
func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(rdb, append([]holdfast.Option{holdfast.WithTTL(time.Minute)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func acquire(t *testing.T, l *holdfast.Locker, key string, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	lock, err := l.Acquire(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Release(context.Background()) })
	return lock
}

// wait has another process wait for key, and returns when it is in line.
func wait(t *testing.T, rdb redis.UniversalClient, key, label string, line int, opts ...holdfast.CallOption) {
	t.Helper()
	l := newLocker(t, rdb)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if lock, err := l.Acquire(ctx, key, append(opts, holdfast.WithLabel(label))...); err == nil {
			_ = lock.Release(context.Background())
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	until(t, "it waits", func() bool { s, err := l.Inspect(t.Context(), key); return err == nil && s.Waiting == line })
}

// hang only bounds tests that hang.
const hang = time.Minute

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hang); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %v", what, hang)
		}
	}
}

func TestWrongCommandLinesSayWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		text   string
	}{
		{nil, 64, "usage:"},
		{[]string{"rm"}, 64, "no command rm"},
		{[]string{"\x1b[2J"}, 64, `no command "\x1b[2J"`},
		{[]string{"ls", "-x"}, 64, "-x"},
		{[]string{"ls", "a", "b"}, 64, "one argument"},
		{[]string{"ls", "[a"}, 64, "without ]"},
		{[]string{"watch", `a\`}, 64, "at the end"},
		{[]string{"watch", "-n", "1ms"}, 64, "100ms"},
		{[]string{"show"}, 64, "needs a key"},
		{[]string{"show", "-quoted", "a"}, 64, "not a quoted"},
		{[]string{"ls", "-redis", "http://127.0.0.1"}, 64, "the URL of Redis"},
		{[]string{"ls", "-redis", "redis+sentinel://127.0.0.1"}, 64, "the URL of Redis"},
		{[]string{"ls", "-h"}, 0, "-redis"},
		{[]string{"help"}, 0, "usage:"},
	} {
		r := play(t, "127.0.0.1:1", c.args...)
		if r.status != c.status || !strings.Contains(r.stdout+r.stderr, c.text) {
			t.Errorf("%q: want status %d and %q, got %v", c.args, c.status, c.text, r)
		}
	}
}

func TestThePasswordIsInNoError(t *testing.T) {
	t.Parallel() // it waits for dials that fail
	for _, address := range []string{
		"redis://user:secret@127.0.0.1:port", "redis://user:secret@127.0.0.1:1/x", "redis://user:secret@%zz", "user:secret@\x7f",
		"redis://user:secret@127.0.0.1:1", "rediss://user:secret@127.0.0.1:1?nonsense=1", "redis+sentinel://:secret@127.0.0.1:1/m?db=x", "redis+cluster://:secret@127.0.0.1:1", "redis+sentinel://:secret@127.0.0.1:1",
	} {
		for _, args := range [][]string{{"ls"}, {"show", "k"}} {
			if r := play(t, address, args...); r.status == 0 || r.stderr == "" || strings.Contains(r.stderr, "secret") {
				t.Errorf("%q %v: %v", address, args, r)
			}
		}
	}
}

// passwords are addresses with a password that has one of the words and a few characters that mean something in a URL.
// None of the words appears anywhere else.
func passwords(rng *rand.Rand) (address string, words []string) {
	const letters = "bcdfghjkmnpqrstvwxz0123456789"
	word := func() string {
		b := make([]byte, 6)
		for i := range b {
			b[i] = letters[rng.IntN(len(letters))]
		}
		if rng.IntN(4) == 0 { // a port
			b = fmt.Appendf(nil, "%d", 20000+rng.IntN(9999))
		}
		words = append(words, string(b))
		return string(b)
	}
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	password := word()
	for range 1 + rng.IntN(3) {
		password += pick("/", "#", "?", "@", ":", "%", "&", "=", "://", "[", "]", " ", ";", "?addr=", "?db=", "?client_name=", "#@", "\\") + word()
	}
	if rng.IntN(8) == 0 {
		password = pick("/", "#", "?", ":", "%") + password
	}
	address = pick("redis://", "rediss://", "unix://", "", "redis:/", "REDIS://", "http://", "://") +
		pick("", "user", "user", "a@b", "a/b") + pick(":", ":", ":", "") + password + pick("@", "@", "@", "@@", "") +
		pick("127.0.0.1:1", "127.0.0.1:1/0", "127.0.0.1", "", "/nowhere.sock")
	switch rng.IntN(6) {
	case 0:
		address += "?client_name=m"
	case 1:
		address = "redis://127.0.0.1:1?client_name=m&password=" + password
	case 2:
		address = "redis://127.0.0.1:1?password=" + password + pick("", "&db=1")
	}
	return address, words
}

func TestNoPartOfAPasswordIsInAnError(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 20000 {
		address, words := passwords(rng)
		for _, kind := range []string{"", "+cluster", "+sentinel"} {
			address := strings.Replace(address, "://", kind+"://", 1)
			o, err := options(address)
			if err != nil {
				refused++
				for _, word := range words {
					if strings.Contains(err.Error(), word) {
						t.Fatalf("%q: %v", address, err)
					}
				}
				if !strings.Contains(err.Error(), "%23") {
					t.Fatalf("%q: got %v, which does not say how to write a password", address, err)
				}
				continue
			}
			// What a dial that fails says.
			dials := ""
			switch o := o.(type) {
			case *redis.ClusterOptions:
				dials = strings.Join(o.Addrs, " ")
			case *redis.FailoverOptions:
				dials = strings.Join(o.SentinelAddrs, " ")
			case *redis.Options:
				dials = o.Addr
			}
			end := address[strings.LastIndex(address, words[len(words)-1]):]
			if strings.Contains(end, "@") || strings.Contains(address, "password=") { // else it names a host, as far as anybody can tell
				for _, word := range words {
					if strings.Contains(dials, word) {
						t.Fatalf("%q: dials %s", address, dials)
					}
				}
			}
		}
	}
	if refused < 5000 {
		t.Errorf("only %d addresses were refused", refused)
	}
}

// The same of the whole program: a part of the password could be taken for the host, or for the port of this machine.
func TestAPasswordThatEndsTheURLIsNotDialled(t *testing.T) {
	for _, password := range []string{"12345#walrus", "12345?walrus", "12345/walrus", "12345?client_name=walrus", "panda#walrus", "12345/0#walrus"} {
		for _, address := range []string{"redis://:" + password + "@127.0.0.1:1", "redis://user:" + password + "@127.0.0.1:1", "user:" + password + "@127.0.0.1:1"} {
			for _, args := range [][]string{{"ls"}, {"ls", "-json"}, {"show", "k"}, {"watch"}} {
				r := play(t, address, args...)
				if text := r.stdout + r.stderr; r.status != 64 || strings.Contains(text, "12345") || strings.Contains(text, "panda") ||
					strings.Contains(text, "walrus") || !strings.Contains(text, "%23") {
					t.Errorf("%q %v: %v", address, args, r)
				}
			}
		}
	}
}

// A server that does not know AUTH repeats the password.
func TestThePasswordIsNotInWhatAServerRepeats(t *testing.T) {
	s := servertest.Redis(t, "--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
	for _, args := range [][]string{{"ls"}, {"ls", "-json"}, {"show", "k"}} {
		if r := play(t, "redis://:secret@"+s.Addr(), args...); r.status != 69 || strings.Contains(r.stdout+r.stderr, "secret") {
			t.Errorf("%v: %v", args, r)
		}
	}
}

func TestConnectByURL(t *testing.T) {
	for address, want := range map[string]string{
		"":                             "127.0.0.1:6379",
		"host:7":                       "host:7",
		"redis://host":                 "host:6379",
		"redis+sentinel://host:7,h/m":  "FailoverClient",
		"rediss://u:p@host:7/3":        "host:7 TLS u p 3",
		"unix://u:p@/run/redis.sock":   "/run/redis.sock u p",
		"unix:///run/a%40b.sock":       "/run/a@b.sock",
		"redis://u:p%2F%23%3F%40%25@h": "h:6379 u p/#?@%",
		"redis://u:p@q:r@h":            "h:6379 u p@q:r",
	} {
		client, err := connect(address)
		if err != nil {
			t.Errorf("%q: %v", address, err)
			continue
		}
		o := client.(*redis.Client).Options()
		got := o.Addr
		if o.TLSConfig != nil {
			got += " TLS"
		}
		if o.Username != "" {
			got += " " + o.Username + " " + o.Password
		}
		if o.DB != 0 {
			got += fmt.Sprint(" ", o.DB)
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", address, got, want)
		}
		_ = client.Close()
	}
	client, err := connect("rediss+cluster://u:p@a:1,b:2")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if o := client.(*redis.ClusterClient).Options(); strings.Join(o.Addrs, " ") != "a:1 b:2" || o.TLSConfig == nil || o.Password != "p" {
		t.Errorf("a Cluster: %+v", o)
	}
}

func TestConnectToSentinel(t *testing.T) {
	o, err := options("rediss+sentinel://u:p%2F@a,[::1],b:7/my-master/3?sentinel_username=s&sentinel_password=q%23")
	if err != nil {
		t.Fatal(err)
	}
	f := o.(*redis.FailoverOptions)
	if got := fmt.Sprint(f.SentinelAddrs, f.MasterName, f.DB, f.Username, f.Password, f.SentinelUsername, f.SentinelPassword); got != "[a:26379 [::1]:26379 b:7]my-master3up/sq#" || f.TLSConfig == nil {
		t.Errorf("got %s", got)
	}
	for _, wrong := range []string{"redis+sentinel://a", "redis+sentinel:///m", "redis+other://a", "unix+cluster:///x", "redis+cluster://a,b:x", "redis+sentinel://a/m/x", "redis+sentinel://a/m?nonsense=1"} {
		if o, err := options(wrong); err == nil {
			t.Errorf("%s: got %+v", wrong, o)
		}
	}
}

func TestSeveralURLs(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                   {""},
		"a:1,b:2":                            {"a:1", "b:2"},
		"redis://a,rediss://u:p@b,unix:///c": {"redis://a", "rediss://u:p@b", "unix:///c"},
		"redis+sentinel://a,b/m":             {"redis+sentinel://a,b/m"},
		"redis://u:p,q@a,redis://b":          {"redis://u:p,q@a", "redis://b"},
		"u:p,q@a":                            {"u:p,q@a"},
	} {
		if got := list(text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

func TestServersOfSeveralMasters(t *testing.T) {
	var clients []*redis.Client
	var addrs []string
	for range 3 {
		s := servertest.Redis(t)
		clients, addrs = append(clients, s.Client()), append(addrs, s.Addr())
	}
	l, err := redlock.New(clients, redlock.WithQuarantine(0), holdfast.WithTTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(addrs, ",")
	lock := acquire(t, l, "k", holdfast.WithLabel("me"))
	until(t, "all masters have it", func() bool { return strings.Count(play(t, all, "ls").stdout, "me") == 3 })
	if r := play(t, "", "ls", "-redis", addrs[0], "-redis", addrs[1]); strings.Count(r.stdout, "me") != 2 || !strings.Contains(r.stdout, "k on "+addrs[1]) {
		t.Errorf("got %v", r)
	}
	if r := play(t, all, "show", "k"); r.status != 0 || strings.Count(r.stdout, "  me\n") != 3 {
		t.Errorf("got %v", r)
	}
	if r := play(t, all, "release", "-yes", "k"); r.status != 0 {
		t.Errorf("got %v", r)
	}
	lapses(t, "the holder", lock)
	acquire(t, l, "k", holdfast.WithLabel("me"))
	if r := play(t, all+","+"redis+cluster://127.0.0.1:1", "run", "-try", "k", "true"); r.status != statusUsage {
		t.Errorf("a Cluster among them: %v", r)
	}
	if r := play(t, all, "show", "nothing"); r.status != statusNothing {
		t.Errorf("got %v", r)
	}
}

func TestWhatRedisRefusesIsExplained(t *testing.T) {
	s := servertest.Redis(t)
	rdb := s.Client()
	rdb.ConfigSet(t.Context(), "requirepass", "right")
	for _, c := range []struct {
		user   *url.Userinfo
		args   []string
		status int
		text   string
	}{
		{nil, []string{"ls"}, 69, "the password goes into the URL"},
		{url.UserPassword("default", "wrong"), []string{"show", "k"}, 69, "the password goes into the URL"},
		{url.UserPassword("default", "right"), []string{"ls"}, 0, ""},
		{url.UserPassword("default", "right"), []string{"show", "k"}, 3, "nothing is known"},
	} {
		u := url.URL{Scheme: "redis", Host: s.Addr(), User: c.user}
		if r := play(t, u.String(), c.args...); r.status != c.status || !strings.Contains(r.stderr, c.text) {
			t.Errorf("%v %v: want status %d and %q, got %v", c.user, c.args, c.status, c.text, r)
		}
	}
	s.Kill()
	if r := play(t, s.Addr(), "ls"); r.status != 69 || !strings.Contains(r.stderr, "refused") || r.stdout != "" {
		t.Errorf("nobody there: %v", r)
	}
}

func TestStoppedListSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr output
	a := &app{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return miniredis.RunT(t).Addr() }, connect: connect}
	if status := a.run(ctx, []string{"ls"}); status != 130 || stdout.String() != "" {
		t.Errorf("got %v", result{status, stdout.String(), stderr.String()})
	}
}

// The least that an ACL must allow, as README.md has it.
func TestServerACL(t *testing.T) {
	s := servertest.Redis(t)
	rdb := s.Client()
	acquire(t, newLocker(t, rdb), "k", holdfast.WithLabel("me"))
	wait(t, rdb, "k", "w", 1)
	rdb.Set(t.Context(), "long", "AAECAwQFBgcICQoLDA0ODw:me", 0)
	for user, commands := range map[string]string{
		"ls":   "SCAN EVALSHA EVAL GET PTTL ZCARD ZRANK GETRANGE",
		"show": "MULTI EXEC GETRANGE PTTL ZRANGE ZCARD ZCOUNT HGETALL HMGET TIME",
	} {
		acl := []any{"ACL", "SETUSER", user, "on", ">p", "~*", "-@all"}
		for _, command := range strings.Fields(commands) {
			acl = append(acl, "+"+strings.ToLower(command))
		}
		if err := rdb.Do(t.Context(), acl...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"ls"}, {"ls", "-all"}, {"show", "k"}} {
		u := url.URL{Scheme: "redis", Host: s.Addr(), User: url.UserPassword(args[0], "p")}
		if r := play(t, u.String(), args...); r.status != 0 || !strings.Contains(r.stdout, "me") {
			t.Errorf("%v: %v", args, r)
		}
	}
	u := url.URL{Scheme: "redis", Host: s.Addr(), User: url.UserPassword("ls", "p")}
	acquire(t, newLocker(t, rdb), "permits", holdfast.WithLabel("one"), holdfast.WithLimit(2))
	for _, c := range []struct {
		allow   []any
		waiting string // for k
	}{
		{[]any{"+hgetall", "+time"}, "1"}, // which the script takes where several hold a lock
		{[]any{"+zrange", "+hmget"}, "1: w"},
	} {
		if err := rdb.Do(t.Context(), append([]any{"ACL", "SETUSER", "ls"}, c.allow...)...).Err(); err != nil {
			t.Fatal(err)
		}
		until(t, "w is in line", func() bool {
			r := play(t, u.String(), "ls")
			got := r.table(t)
			return r.status == 0 && got["k"][5] == c.waiting && got["permits"][1] == "1 of 2: one"
		})
	}
	// Without GETRANGE, -all must not say that there is nothing.
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "ls", "-getrange").Err(); err != nil {
		t.Fatal(err)
	}
	if r := play(t, u.String(), "ls", "-all"); r.status != 69 || !strings.Contains(r.stderr, "NOPERM") {
		t.Errorf("without GETRANGE: %v", r)
	}
}
