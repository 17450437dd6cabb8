package holdfast_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

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
		if got := holdfast.Key(parts...); got != want {
			t.Errorf("Key(%q): got %q, want %q", parts, got, want)
		}
	}
	long := strings.Repeat("x", 300)
	a, b := holdfast.Key("order", long+"1"), holdfast.Key("order", long+"2")
	if a == b || len(a) > 256 || !strings.HasPrefix(a, "order:xxx") || !strings.Contains(a, "#") {
		t.Errorf("long keys: %q, %q", a, b)
	}
	if edge := holdfast.Key(strings.Repeat("x", 256)); edge != strings.Repeat("x", 256) {
		t.Errorf("256 bytes were hashed: %q", edge)
	}
}

func TestKeyRules(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		prefixed := newReplica(t, b, holdfast.WithPrefix("shop:"))
		for _, key := range []string{"", "a\x00b", strings.Repeat("x", 513), "a}b", "{}x", "x{}", "{k}:~fence", "a:~b", "}"} {
			_, err := r.TryAcquire(background, key)
			wantIs(t, err, holdfast.ErrInvalid)
			_, err = r.Acquire(background, key)
			wantIs(t, err, holdfast.ErrInvalid)
			_, err = r.Inspect(background, key)
			wantIs(t, err, holdfast.ErrInvalid)
		}
		_, err := prefixed.TryAcquire(background, "")
		wantIs(t, err, holdfast.ErrInvalid)
		sent(t, b, 0)
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
		fine(t, lock.Release(background))
		b.Redis.Del("{x}")
		wantIs(t, other.Release(background), holdfast.ErrLost)
	})
}

// A key can be read back, or is the hash of one that could: so no two lists of parts share one. Names that have nothing
// to escape are keys themselves.
func FuzzKeyReadsBack(f *testing.F) {
	for _, s := range []string{
		"order\n42", "", "\n", "\n\n", "a:b\nc", "a\nb:c", "100%\n%25", "{tag}\n{}", "a\x00b\nc", "é\n\xff", "\U0010ffff\n\ufffd", "~\n#", ":~fence", "a b\nc\td",
		"me@example.com/a-b_c.d+=,", strings.Repeat("x", 256), strings.Repeat("x", 257), strings.Repeat("é", 43), strings.Repeat("\n", 300), strings.Repeat("{", 85) + "x",
		strings.Repeat("x", 127) + "{" + strings.Repeat("x", 200),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts := strings.Split(text, "\n")
		key := holdfast.Key(parts...)
		if whole, hash, hashed := strings.Cut(key, "#"); hashed {
			full := reference(parts)
			sum := sha256.Sum256([]byte(full))
			if len(full) <= 256 || whole != full[:128] || hash != hex.EncodeToString(sum[:]) {
				t.Fatalf("%q: %q", parts, key)
			}
		} else if full := reference(parts); key != full || len(full) > 256 || strings.ContainsAny(key, "{}\x00~") {
			t.Fatalf("%q: got %q, want %q", parts, key, full)
		} else {
			back := strings.Split(key, ":")
			for i, p := range back {
				var err error
				if back[i], err = url.PathUnescape(p); err != nil {
					t.Fatalf("%q: %q: %v", parts, key, err)
				}
			}
			if !slices.Equal(back, parts) {
				t.Fatalf("%q: %q reads back as %q", parts, key, back)
			}
			if plain := strings.Join(parts, ""); strings.Trim(plain, unescaped) == "" && key != strings.Join(parts, ":") {
				t.Fatalf("%q: got %q", parts, key)
			}
		}
		if names, err := holdfast.NameKeys(key); err != nil && key != "" || len(key) > 256 || err == nil && hashed(names[1]) != key {
			t.Fatalf("%q: %q is no key: %v", parts, key, err)
		}
	})
}

// Nothing that one lock has in Redis is anything of another lock's, whatever the two are called, and the rules for names
// are those that are documented. Companions hash to the slot of their lock (Redis Cluster specification, "Hash tags"),
// and are no names of locks.
func FuzzNamesOfTwoLocks(f *testing.F) {
	for _, s := range [][2]string{
		{"x", "{x}"}, {"{x}", "{{x}}"}, {"{x}y", "x}y"}, {"a", "b"}, {"{a}", "{a}:"}, {"{a}:", "{a}::"}, {"x:", "{x}:"}, {"x", "{x}:~fence"}, {"{a}b", "{a}b:"},
		{"a{b", "{a{b}"}, {"{a{b}", "a{b"}, {"a{b}c", "{a{b}c}"}, {"", "a}b"}, {"{}x", "x{}"}, {"a\x00", "a"}, {strings.Repeat("x", 512), strings.Repeat("x", 513)},
		{"{x}:", "{x}:~"}, {"x:~", "x:"}, {"{x}y:", "{x}y"}, {"}", "{"}, {"\xff", "\xfe"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		a, err1 := holdfast.NameKeys(one)
		b, err2 := holdfast.NameKeys(two)
		for key, err := range map[string]error{one: err1, two: err2} {
			if usable(key) != (err == nil) || err != nil && !errors.Is(err, holdfast.ErrInvalid) {
				t.Fatalf("%q: %v", key, err)
			}
		}
		if err1 != nil || err2 != nil || one == two {
			return
		}
		for i, n := range a {
			if slices.Contains(b, n) {
				t.Fatalf("%q and %q both have %q", one, two, n)
			}
			if _, err := holdfast.NameKeys(n); i > 0 && (err == nil || hashed(n) != hashed(one)) {
				t.Fatalf("%q has the companion %q", one, n)
			}
		}
		sorted := slices.Sorted(slices.Values(a))
		if len(slices.Compact(sorted)) != len(a) {
			t.Fatalf("%q: %q", one, a)
		}
	})
}

const unescaped = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._@+=/,"

// reference writes parts as the documentation of Key has it.
func reference(parts []string) string {
	all := make([]string, len(parts))
	for i, p := range parts {
		for _, c := range []byte(p) {
			if strings.IndexByte(unescaped, c) >= 0 {
				all[i] += string(c)
			} else {
				all[i] += "%" + strings.ToUpper(hex.EncodeToString([]byte{c}))
			}
		}
	}
	return strings.Join(all, ":")
}

func usable(key string) bool {
	if key == "" || len(key) > 512 || strings.Contains(key, "\x00") || strings.Contains(key, ":~") {
		return false
	}
	open := strings.Index(key, "{")
	if open < 0 {
		return !strings.Contains(key, "}")
	}
	// Behind the first opening brace a tag is closed, and is not empty, or no brace is closed anywhere.
	return strings.Index(key[open:], "}") > 1 || !strings.Contains(key, "}")
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
