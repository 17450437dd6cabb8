package servertest

import (
	"slices"
	"testing"
)

func TestFrameLen(t *testing.T) {
	whole := []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$2\r\nhi\r\n", "$-1\r\n", "*-1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n",
		"*0\r\n", "*2\r\n$1\r\na\r\n:1\r\n", "%1\r\n+a\r\n*1\r\n:1\r\n", "~1\r\n+a\r\n",
		">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", "|1\r\n+k\r\n+v\r\n:1\r\n", "=5\r\ntxt:a\r\n",
	}
	for _, frame := range whole {
		if n, err := frameLen([]byte(frame + "+next\r\n")); n != len(frame) || err != nil {
			t.Errorf("frameLen(%q): got %d, %v, want %d", frame, n, err, len(frame))
		}
		for cut := range len(frame) {
			if n, err := frameLen([]byte(frame[:cut])); n != 0 || err != nil {
				t.Errorf("frameLen(%q), incomplete: got %d, %v, want 0", frame[:cut], n, err)
			}
		}
	}
	for _, bad := range []string{"x", "*x\r\n", "$-2\r\n", "*1\r\nx", "\x00\x00", "*\x00", "$5x"} {
		if n, err := frameLen([]byte(bad)); err == nil {
			t.Errorf("frameLen(%q): got %d, want an error", bad, n)
		}
	}
}

func TestBulkStrings(t *testing.T) {
	got := bulkStrings([]byte("*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n"))
	if want := []string{"GET", "a\r\n"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, other := range []string{"+OK\r\n", "*1\r\n:1\r\n", "*-1\r\n", "*1\r\n$-1\r\n"} {
		if got := bulkStrings([]byte(other)); got != nil {
			t.Errorf("bulkStrings(%q): got %q, want none", other, got)
		}
	}
}

func FuzzFrameLen(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\na\r\n"))
	f.Add([]byte("%1\r\n+a\r\n|1\r\n+k\r\n+v\r\n:1\r\n"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		n, err := frameLen(buf)
		if n < 0 || n > len(buf) || n > 0 && err != nil {
			t.Fatalf("frameLen(%q): %d, %v", buf, n, err)
		}
		if n > 0 {
			bulkStrings(buf[:n])
		}
	})
}
