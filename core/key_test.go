package core_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestKeyJoinsUnambiguously(t *testing.T) {
	for want, parts := range map[string][]string{
		"order:42":                  {"order", "42"},
		"":                          {},
		"order:":                    {"order", ""},
		":":                         {"", ""},
		"a%3Ab:c":                   {"a:b", "c"},
		"a:b%3Ac":                   {"a", "b:c"},
		"%7Btag%7D":                 {"{tag}"},
		"100%25:%00:%7E:%23":        {"100%", "\x00", "~", "#"},
		"me@example.com/a-b_c.d+=,": {"me@example.com/a-b_c.d+=,"},
		"%C3%A9:%FF":                {"é", "\xff"},
	} {
		if got := core.Key(parts...); got != want {
			t.Errorf("Key(%q): got %q, want %q", parts, got, want)
		}
	}
	long := strings.Repeat("x", 300)
	a, b := core.Key("order", long+"1"), core.Key("order", long+"2")
	if a == b || len(a) > 256 || !strings.HasPrefix(a, "order:xxx") || !strings.Contains(a, "#") {
		t.Errorf("long keys: %q, %q", a, b)
	}
	if edge := core.Key(strings.Repeat("x", 256)); edge != strings.Repeat("x", 256) {
		t.Errorf("256 bytes were hashed: %q", edge)
	}
}

func FuzzKey(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add("", "", "", "")
	f.Add("{}", "}", "%7B", "\x00")
	f.Add(strings.Repeat("é", 200), "1", strings.Repeat("é", 200), "2")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		k1, k2 := core.Key(a, b), core.Key(c, d)
		if (k1 == k2) != (a == c && b == d) {
			t.Errorf("Key(%q, %q) = %q, Key(%q, %q) = %q", a, b, k1, c, d, k2)
		}
		if core.Key(a, b, c) == k1 {
			t.Errorf("three parts make the key of two: %q", k1)
		}
		if len(k1) > 256 || strings.ContainsAny(k1, "{}\x00~") || !utf8.ValidString(k1) {
			t.Errorf("unusable key %q", k1)
		}
		if _, err := core.NameKeys(k1); err != nil {
			t.Errorf("Key made a key that is refused: %v", err)
		}
	})
}

// Companions must hash to the slot of the lock (Redis Cluster specification, "Hash tags").
func FuzzCompanionSlots(f *testing.F) {
	for _, k := range []string{"order:42", "{shop}order", "a{b}c{d}", "a{b", "a}b{c}", "a}b", "{}x", "x{}", "{a", "}", "{", "a{}b{c}"} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		names, err := core.NameKeys(key)
		if err != nil {
			wantIs(t, err, core.ErrInvalid)
			return
		}
		for _, n := range names[1:] {
			if hashed(n) != hashed(key) {
				t.Errorf("%q is hashed as %q, its companion %q as %q", key, hashed(key), n, hashed(n))
			}
			if _, err := core.NameKeys(n); err == nil {
				t.Errorf("the companion %q of %q is a lock's name too", n, key)
			}
		}
	})
}

// hashed is the part of a key that a Cluster hashes.
func hashed(key string) string {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if n := strings.IndexByte(key[open+1:], '}'); n > 0 {
			return key[open+1 : open+1+n]
		}
	}
	return key
}

func TestKeyRules(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		prefixed := newReplica(t, b, core.WithPrefix("shop:"))
		for _, key := range []string{"", "a\x00b", strings.Repeat("x", 513), "a}b", "{}x", "x{}", "{k}:~fence", "a:~b", "}"} {
			_, err := r.TryAcquire(background, key)
			wantIs(t, err, core.ErrInvalid)
			_, err = r.Acquire(background, key)
			wantIs(t, err, core.ErrInvalid)
			_, err = r.Inspect(background, key)
			wantIs(t, err, core.ErrInvalid)
		}
		_, err := prefixed.TryAcquire(background, "")
		wantIs(t, err, core.ErrInvalid)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands for keys that can never work", n)
		}
		for _, key := range []string{"a", strings.Repeat("x", 512), "{shop}order", "a{b", "a{b}c", "a}b{c}", "mit Leerzeichen", "é"} {
			release(t, acquire(t, r.Locker, key))
		}
		lock := acquire(t, prefixed.Locker, "order:1")
		if !b.Redis.Exists("shop:order:1") || lock.Key() != "shop:order:1" {
			t.Errorf("Key: got %q", lock.Key())
		}
		release(t, lock)
	})
}

func TestTaggedAndPlainNameAreTwoLocks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, a)
		lock := acquire(t, a.Locker, "x")
		other := acquire(t, c.Locker, "{x}")
		a.link.OnCommand(first("forget", servertest.LoseReply))
		if err := lock.Release(background); err != nil {
			t.Errorf("released, reply lost: %v", err)
		}
		b.Redis.Del("{x}")
		wantIs(t, other.Release(background), core.ErrLost)
	})
}
