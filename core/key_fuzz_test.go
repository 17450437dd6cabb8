package core_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/core"
)

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
		key := core.Key(parts...)
		if whole, hash, hashed := strings.Cut(key, "#"); hashed {
			full := reference(parts)
			sum := sha256.Sum256([]byte(full))
			if len(full) <= 256 || whole != full[:128] || hash != hex.EncodeToString(sum[:]) {
				t.Fatalf("%q: %q", parts, key)
			}
		} else if full := reference(parts); key != full || len(full) > 256 {
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
		if names, err := core.NameKeys(key); err != nil && key != "" || len(key) > 256 || err == nil && hashed(names[1]) != key {
			t.Fatalf("%q: %q is no key: %v", parts, key, err)
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

// Nothing that one lock has in Redis is anything of another lock's, whatever the two are called, and the rules for names
// are those that are documented.
func FuzzNamesOfTwoLocks(f *testing.F) {
	for _, s := range [][2]string{
		{"x", "{x}"}, {"{x}", "{{x}}"}, {"{x}y", "x}y"}, {"a", "b"}, {"{a}", "{a}:"}, {"{a}:", "{a}::"}, {"x:", "{x}:"}, {"x", "{x}:~fence"}, {"{a}b", "{a}b:"},
		{"a{b", "{a{b}"}, {"{a{b}", "a{b"}, {"a{b}c", "{a{b}c}"}, {"", "a}b"}, {"{}x", "x{}"}, {"a\x00", "a"}, {strings.Repeat("x", 512), strings.Repeat("x", 513)},
		{"{x}:", "{x}:~"}, {"x:~", "x:"}, {"{x}y:", "{x}y"}, {"}", "{"}, {"\xff", "\xfe"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		a, err1 := core.NameKeys(one)
		b, err2 := core.NameKeys(two)
		for key, err := range map[string]error{one: err1, two: err2} {
			if usable(key) != (err == nil) {
				t.Fatalf("%q: %v", key, err)
			}
			if err != nil {
				wantIs(t, err, core.ErrInvalid)
			}
		}
		if err1 != nil || err2 != nil || one == two {
			return
		}
		for _, n := range a {
			if slices.Contains(b, n) {
				t.Fatalf("%q and %q both have %q", one, two, n)
			}
		}
		sorted := slices.Sorted(slices.Values(a))
		if len(slices.Compact(sorted)) != len(a) {
			t.Fatalf("%q: %q", one, a)
		}
	})
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
