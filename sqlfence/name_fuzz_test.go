package sqlfence

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/core"
)

// A name that is let pass stays one name wherever it is written: read as the database reads it, each statement is that
// of a table named t, with the words of the name in the place of the t.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"t", "sqlfence", "shop.order", "Shop.Order_2", "a.b.c", "$", "a$1", "a$sqlfence$b", "$sqlfence$", "sqlfence$.$", "_",
		"", ".", "a.", ".a", "a..b", "a b", "a;b", `a"b`, "a`b", "a'b", "a--b", "a/*b", "1a", "ä", "a\x00b", "a\xffb", "$1", "$$",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 40) + "a", `a"."b`, "a`.`b", "a\\", "a\nb", "ａ",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, table string) {
		for _, d := range []Dialect{Postgres, MySQL, SQLite} {
			fence, err := New(d, WithTable(table))
			if plainName(table) != (err == nil) || err != nil && !errors.Is(err, holdfast.ErrInvalid) {
				t.Fatalf("table %q: %v", table, err)
			}
			if err != nil {
				continue
			}
			want := d.statements("t", false)
			for _, s := range [][2]string{
				{fence.DDL(), want.create}, {fence.sql.raise, want.raise}, {fence.sql.advance, want.advance}, {fence.sql.share, want.share}, {fence.sql.read, want.read}, {fence.sql.look, want.look},
			} {
				sameBut(t, d, s[0], s[1], table)
			}
		}
	})
}

// plainName is what WithTable promises to take.
func plainName(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_$"
	for _, word := range strings.Split(name, ".") {
		if word == "" || len(word) > 63 || strings.Trim(word, letters+"0123456789") != "" || !strings.Contains(letters, word[:1]) {
			return false
		}
	}
	return true
}

// sameBut compares the words of two statements, where name stands for the t that the second one has.
func sameBut(t *testing.T, d Dialect, got, model, name string) {
	t.Helper()
	var want []string
	for _, w := range words(t, d, model) {
		if w != "name t" {
			want = append(want, w)
			continue
		}
		for i, part := range strings.Split(name, ".") {
			if i > 0 {
				want = append(want, ".")
			}
			want = append(want, "name "+part)
		}
	}
	if have := words(t, d, got); !slices.Equal(have, want) {
		t.Fatalf("%v, name %q: the statement\n%s\nreads %q, want %q", d, name, got, have, want)
	}
}

// words takes a statement apart as the database does. What stands in a string or a dollar-quoted body is taken apart too,
// as the one is a name and the other a program.
func words(t *testing.T, d Dialect, s string) (all []string) {
	t.Helper()
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"
	// closed is the text up to a quote that is not doubled, and what is behind it.
	closed := func(s string, quote byte) (text, rest string) {
		for i := 0; i < len(s); i++ {
			switch {
			case s[i] != quote:
			case i+1 < len(s) && s[i+1] == quote:
				i++
			default:
				q := string(quote)
				return strings.ReplaceAll(s[:i], q+q, q), s[i+1:]
			}
		}
		t.Fatalf("%v: a quote that is not closed: %s", d, s)
		return "", ""
	}
	for s != "" {
		switch c := s[0]; {
		case strings.IndexByte(" \n", c) >= 0:
			s = s[1:]
		case c == '`' && d != Postgres, c == '"' && d != MySQL:
			var name string
			name, s = closed(s[1:], c)
			all = append(all, "name "+name)
		case c == '\'':
			var text string
			text, s = closed(s[1:], c)
			all = append(append(append(all, "string"), words(t, d, text)...), "end")
		case c == '$' && d == Postgres && len(s) > 1 && (s[1] < '0' || s[1] > '9'):
			n := strings.IndexByte(s[1:], '$')
			if n < 0 {
				t.Fatalf("a dollar: %s", s)
			}
			tag := s[:n+2]
			body, rest, ok := strings.Cut(s[len(tag):], tag)
			if !ok {
				t.Fatalf("a body that does not end: %s", s)
			}
			all = append(append(append(all, "body"), words(t, d, body)...), "end")
			s = rest
		default:
			n := len(s) - len(strings.TrimLeft(s, plain))
			n = max(n, 1)
			all = append(all, s[:n])
			s = s[n:]
		}
	}
	return all
}
