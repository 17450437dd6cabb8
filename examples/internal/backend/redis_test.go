package backend

import (
	"strings"
	"testing"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

func TestNoPartOfAPasswordIsInTheAddressOrTheError(t *testing.T) {
	for _, addr := range []string{
		"redis://:12345#word@h:1", "redis://:12345?word@h:1", "redis://:12345/word@h:1", "redis://word:12345?client_name=x@h:1",
		"redis://user:word%zz@h:1", "user:word@h:1", ":12345#word@h:1", "12345?word@h:1", "word://12345@h:1", "redis://h:1#word", "redis:/a@b:12345?x=://word@h",
	} {
		o, err := RedisOptions(addr)
		if err == nil {
			if strings.Contains(o.Addr, "12345") || strings.Contains(o.Addr, "word") {
				t.Errorf("%q: dials %s", addr, o.Addr)
			}
			t.Errorf("%q: no error", addr)
		} else if strings.Contains(err.Error(), "12345") || strings.Contains(err.Error(), "word@") || !strings.Contains(err.Error(), "%23") {
			t.Errorf("%q: got %v", addr, err)
		}
	}
	for addr, want := range map[string]string{
		"h:1": "h:1 ", "redis://h": "h:6379 ", "redis://:a%23b@h:2/3": "h:2 a#b", "[::1]:6379": "[::1]:6379 ",
	} {
		if o, err := RedisOptions(addr); err != nil || o.Addr+" "+o.Password != want {
			t.Errorf("%q: got %+v, %v, want %s", addr, o, err, want)
		}
	}
}
