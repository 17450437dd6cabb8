package sqlfence_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// What a database could not keep as it is never gets there, and is told as such; all else is kept to the letter, and
// outdone by larger tokens alone.
func FuzzMarks(f *testing.F) {
	for _, resource := range []string{
		"order:42", "{shop}order", "", "a\x00b", "a\xffb", "é", "\xed\xa0\x80", "\U0010ffff", "\ufffd", " ", "a'b", `a"b`, "a\\b", "%s", "r'",
		strings.Repeat("k", 512), strings.Repeat("k", 513), strings.Repeat("é", 256), strings.Repeat("é", 257),
	} {
		for d := range dialects {
			f.Add(resource, int64(7), int64(6), byte(d))
		}
	}
	for _, token := range []int64{0, -1, 1, 1<<53 - 1, 1 << 53, 1<<63 - 1, -1 << 63} {
		f.Add("r", token, int64(5), byte(1))
		f.Add("r", int64(5), token, byte(2))
	}
	f.Fuzz(func(t *testing.T, resource string, token, stored int64, dialect byte) {
		const tooMuch = 1 << 53
		fake, db := newDB(t)
		d := dialects[int(dialect)%len(dialects)]
		fence := newFence(t, d)
		if stored > 0 && stored < tooMuch {
			fake.rows[resource] = stored
		} else {
			stored = 0
		}
		named := resource != "" && len(resource) <= 512 && utf8.ValidString(resource) && !strings.Contains(resource, "\x00")
		current, err := fence.Current(background, db, resource)
		if named && (err != nil || current != stored) || !named && !errors.Is(err, holdfast.ErrInvalid) {
			t.Fatalf("Current(%q): got %d, %v", resource, current, err)
		}
		asked := fake.count("read")
		err = fence.Advance(sqlfence.Mark{Resource: resource, Token: token}.In(background), db)
		switch {
		case !named || token <= 0 || token >= tooMuch:
			if !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "sqlfence: ") || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q %d: got %v, want ErrInvalid", resource, token, err)
			}
			if fake.count("begin")+fake.count("raise")+fake.count("read") != asked {
				t.Fatalf("%q %d: the database was asked: %s", resource, token, fake.ops())
			}
		case stored > token:
			wantStale(t, err, sqlfence.StaleError{Resource: resource, Token: token, Current: stored})
			if fake.rows[resource] != stored {
				t.Fatalf("a stale token changed the row to %d", fake.rows[resource])
			}
		default:
			if err != nil || fake.rows[resource] != token || len(fake.rows) != 1 {
				t.Fatalf("%q %d over %d: got %v, rows %v", resource, token, stored, err, fake.rows)
			}
		}
	})
}
