package holdfast_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/redis/go-redis/v9"
)

// The list is enough, and nothing is in it that is not used.
func TestServerRedLockACL(t *testing.T) {
	t.Parallel() // mostly it waits
	f := startFleet(t, 3)
	trace := holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) {
		if contains(e.Err, "NOPERM") || contains(e.Err, "permission") {
			t.Errorf("refused: %v", e.Err)
		}
	}})
	opts := []holdfast.Option{holdfast.WithTTL(6 * time.Second), redlock.WithNodeTimeout(2500 * time.Millisecond), trace} // on a busy machine
	a, b := quorum(t, f.user(t, "u", redLockCommands...), opts...), quorum(t, f.user(t, "u", redLockCommands...), opts...)
	for _, s := range f {
		s.ResetStats(t)
	}
	lock := obtain(t, a, "k")
	fine(t, lock.Extend(background, 7*time.Second))
	next := make(chan *holdfast.Lock)
	go func() {
		got, err := b.Acquire(background, "k")
		fine(t, err)
		next <- got
	}()
	until(t, "it waits", func() bool { s, err := a.Inspect(background, "k"); return err == nil && s.Waiting == 1 })
	awaitRenewal(t, lock)
	// The connection of the inbox is tried out when nothing came for 5 s.
	until(t, "a ping", func() bool { return f[0].CommandStats(t)["ping"] > 0 })
	release(t, lock)
	if got := <-next; got != nil {
		if f[2].Pause(); got.Err() != nil {
			t.Error(got.Err())
		}
		f[2].Resume()
		release(t, got)
	}
	at := time.Now()
	for want := true; ; want = false {
		ok, err := tick.Claim(background, a, "k", at)
		if err != nil || ok != want {
			t.Errorf("Claim: %v, %v, want %v", ok, err, want)
		}
		if !want {
			break
		}
	}
	shutdown(t, a)
	shutdown(t, b)
	used := map[string]bool{}
	for _, s := range f {
		for name := range s.CommandStats(t) {
			used[name] = true
		}
		log, err := s.Client().ACLLog(background, 10).Result()
		must(t, err)
		for _, e := range log {
			// go-redis introduces itself, and goes on where it may not.
			if !strings.HasPrefix(e.Object, "client") && !strings.HasPrefix(e.Object, "command") {
				t.Errorf("refused: %s %s (%s)", e.Reason, e.Object, e.Context)
			}
		}
	}
	for _, mine := range []string{"acl|log", "acl|setuser", "acl"} {
		delete(used, mine)
	}
	if used["pubsub"] { // as Redis 6 counts it
		delete(used, "pubsub")
		used["pubsub|numsub"] = true
	}
	used["info"] = true // which is not counted
	if got, want := slices.Sorted(maps.Keys(used)), slices.Sorted(slices.Values(redLockCommands)); !slices.Equal(got, want) {
		t.Errorf("used were %v, want %v", got, want)
	}
}

// A master that does not tell its age does not vote, unless there is no quarantine.
func TestServerRedLockWithoutInfo(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	some := slices.DeleteFunc(slices.Clone(redLockCommands), func(c string) bool { return c == "info" })
	l := quorum(t, f.user(t, "u", some...), redlock.WithQuarantine(30*time.Second))
	_, err := l.TryAcquire(background, "k")
	e := young(t, err)
	if !e.Until.IsZero() || len(e.Nodes) < 2 || !contains(err, "INFO server") {
		t.Errorf("got %v", err)
	}
	if ok, err := tick.Claim(background, l, "k", time.Now()); ok || !errors.As(err, &e) || !contains(err, "INFO server") {
		t.Errorf("Claim: %v, %v", ok, err)
	}
	shutdown(t, l)
	l = quorum(t, f.user(t, "u", some...))
	release(t, obtain(t, l, "k"))
	shutdown(t, l)
	f.empty(t, "k", "{k}:~mark")

	// Other refusals say what was refused, at once.
	for _, c := range []string{"evalsha", "set", "hget"} {
		some := slices.DeleteFunc(slices.Clone(redLockCommands), func(s string) bool { return s == c })
		l := quorum(t, f.user(t, "v", some...))
		began := time.Now()
		_, err := l.Acquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if took := time.Since(began); took > 10*time.Second || !contains(err, "permission") && !contains(err, "can't run") {
			t.Errorf("without %s: after %v, %v", c, took, err)
		}
		shutdown(t, l)
	}
}

// redLockCommands is all that package redlock needs to be allowed, as the package's description has it.
var redLockCommands = strings.Fields(`evalsha eval mget get getex getrange set del pttl pexpire time
	exists zadd zrem zrange zrank zcard hget hset hdel pubsub|numsub publish subscribe ping info`)

// user is a client under an ACL that allows commands on keys that begin with k, and channels of inboxes.
func (f fleet) user(t *testing.T, name string, commands ...string) (clients []*redis.Client) {
	t.Helper()
	rules := []any{"ACL", "SETUSER", name, "reset", "on", ">secret", "~k*", "~{k*", "&holdfast:inbox:*", "-@all"}
	for _, c := range commands {
		rules = append(rules, "+"+c)
	}
	for _, s := range f {
		if err := s.Client().Do(background, rules...).Err(); err != nil {
			if strings.Contains(err.Error(), "pubsub|numsub") { // before Redis 7 only with -@all and the whole command
				rules[slices.Index(rules, any("+pubsub|numsub"))] = "+pubsub"
				err = s.Client().Do(background, rules...).Err()
			}
			must(t, err)
		}
		clients = append(clients, s.Client(func(o *redis.Options) { o.Username, o.Password = name, "secret" }))
	}
	return clients
}
