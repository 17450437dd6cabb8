package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestNamesOfCompanions(t *testing.T) {
	for name, want := range map[string]string{
		"{order:42}:~fence": "order:42", "{shop}order:~line": "{shop}order", "{whole}:~:~fence": "{whole}", "{a{b}:~wait": "a{b",
		"a}b{c}:~held": "a}b{c}", "{ }:~fence": " ", "{a}{b}:~fence": "{a}{b}",
		"{k}:~gone:x": "", "{k}:~mark": "", "k": "", "k:~fence": "", "{k}:~:~other": "", "{}:~fence": "", "{a}b}:~fence": "{a}b}",
		"{k}:~fence:~fence": "", ":~fence": "", "{k}:~": "",
	} {
		if got, ok := lockOf(name); ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q, %v, want %q", name, got, ok, want)
		}
	}
}

func FuzzNamesOfCompanions(f *testing.F) {
	for _, key := range []string{"k", "{k}", "{a{b}", "a}b", "{}x", "a:~b", "{k}:~fence", "\x00", "\xff{é}"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if base, ok := baseOf(key); ok {
			for _, suffix := range []string{"fence", "line", "wait", "held"} {
				if got, ok := lockOf(base + suffix); !ok || got != key {
					t.Errorf("%q: %q is of %q, %v", key, base+suffix, got, ok)
				}
			}
		}
		if lock, ok := lockOf(key); ok {
			if base, ok := baseOf(lock); !ok || !strings.HasPrefix(key, base) {
				t.Errorf("%q is of %q, whose companions begin with %q", key, lock, base)
			}
		}
	})
}

// What holdfast takes for a key, and where it keeps the fence of that.
func TestServerNamesAreThoseOfHoldfast(t *testing.T) {
	rdb := servertest.Redis(t).Client()
	l := newLocker(t, rdb)
	for _, key := range []string{
		"plain", "{tag}ged", "{whole}", "whole", "a{b", "a}b{c}d", "a{b}c{d}", "{a{b}", "\xff\x1b", "é", strings.Repeat("x", 512),
		"", "a\x00b", strings.Repeat("x", 513), "a}b", "{}x", "x{}", "{k}:~fence", "a:~b", "}",
	} {
		base, ok := baseOf(key)
		lock, err := l.Acquire(t.Context(), key)
		if ok != (err == nil) {
			t.Errorf("%.40q: can be a lock: %v, Acquire: %v", key, ok, err)
		}
		if err != nil {
			continue
		}
		if rdb.Exists(t.Context(), base+"fence").Val() != 1 {
			t.Errorf("%.40q: no %q", key, base+"fence")
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestValuesOfLocks(t *testing.T) {
	const id = "AAECAwQFBgcICQoLDA0ODw"
	for value, want := range map[string][2]bool{
		id: {true, true}, id + ":api-1": {true, true}, id + "==": {false, true}, id + "+": {false, false}, "": {false, false},
		id[:21]: {false, false}, "a cache entry of its own": {false, false}, "abcdefghijklmnopqrstu!": {false, false},
		"AAECAwQFBgcICQoLDA0ODx": {false, false}, // bits left over
	} {
		_, own := ownLabel(value)
		if got := [2]bool{own, lockValue(value)}; got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
	if label, ok := ownLabel(id + ":a:b"); !ok || label != "a:b" {
		t.Errorf("a label with a colon: %q, %v", label, ok)
	}
}

// glob against Redis' own.
func TestServerGlobIsThatOfRedis(t *testing.T) {
	rdb := servertest.Redis(t).Client()
	names := []string{"a", "ab", "abc", "b", "order:1", "order:12", "a*b", `a\b`, "a]b", "a-b", "a^b", "é", "\xff", "{x}y", "aXbXc"}
	for _, name := range names {
		rdb.Set(t.Context(), name, "", 0)
	}
	slices.Sort(names)
	for _, pattern := range []string{
		"*", "a", "a*", "*b", "?", "??", "*?", "a?c", "[ab]", "[a-b]*", "[b-a]*", "[^a]*", "[^a-z]*", "order:[0-9]", "order:*2", `a\*b`,
		`a\\b`, `a[\]]b`, `a[\\]b`, "a[*]b", "[]", "[]a]b", "a[-]b", "a[+--]b", "*X*", "*X*X*", "*X*X*X*", "a**c", "[^]", "\xff", "[\xff]", "{x}*", "a[^^]b", "",
	} {
		if err := checkGlob(pattern); err != nil {
			t.Errorf("%q: %v", pattern, err)
			continue
		}
		var want, got []string
		if pattern != "" { // go-redis leaves an empty one out, and Redis matches all then
			var err error
			if want, _, err = rdb.Scan(t.Context(), 0, pattern, 1000).Result(); err != nil {
				t.Fatal(err)
			}
			slices.Sort(want)
		}
		for _, name := range names {
			if glob(pattern, name) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, Redis has %q", pattern, got, want)
		}
	}
	for _, pattern := range []string{"[", "a[b", `a\`, `[\]`, "[a-]", "[^"} {
		if checkGlob(pattern) == nil {
			t.Errorf("%q was let through", pattern)
		}
	}
}

func TestOddTextsAreQuoted(t *testing.T) {
	for s, want := range map[string]string{
		"order:42": "order:42", "é": "é", "": `""`, "-": `"-"`, "a b": `"a b"`, "\x1b[2J": `"\x1b[2J"`, "a\nb": `"a\nb"`, `"q"`: `"\"q\""`,
		"\xff": `"\xff"`, "\u202eabc": `"\u202eabc"`, "a\u00a0b": `"a\u00a0b"`,
	} {
		got := printable(s)
		if got != want {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
		if back, err := unquote(got); got[0] == '"' && (err != nil || back != s) {
			t.Errorf("%s: back as %q, %v", got, back, err)
		}
	}
	if got := printableText("a b\x1b[2J\n"); got != "a b\uFFFD[2J\uFFFD" {
		t.Errorf("got %q", got)
	}
}
