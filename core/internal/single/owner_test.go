package single

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// From when on the lease of a grant counts, or why only a new look can tell. The server's clock is 1,000 s ahead.
func TestAcceptedGrants(t *testing.T) {
	const (
		ms   = time.Millisecond
		seen = int64(1_000_000_000) // at the look, which was sent at 0
		last = int64(70)
	)
	for _, row := range []struct {
		name  string
		after time.Duration // of the grant by the server's clock, since the look
		heard time.Duration // by ours
		token int64
		from  time.Duration // 0: not to be relied on
	}{
		{"at once", 1000 * ms, 1001 * ms, 71, 990 * ms}, // but for clocks that differ by 1 %
		{"late", 1000 * ms, 1900 * ms, 71, 990 * ms},
		{"a little faster there", 1005 * ms, 1000 * ms, 71, 1000*ms - 10050*time.Microsecond},
		{"set forward there, or standing still here", 1100 * ms, 1000 * ms, 71, 0},
		{"older than the look by its token", 1000 * ms, 1001 * ms, 70, 0},
		{"older than the look by its time", -1 * ms, 1001 * ms, 71, 0},
		{"a token of a clock that was 10 s ahead", 1000 * ms, 1001 * ms, seen + 11_000_000, 990 * ms},
		{"a token that no clock gave", 1000 * ms, 1001 * ms, seen + 11_000_001, 0},
		{"the largest token", 1000 * ms, 1001 * ms, 1<<53 - 1, 0},
	} {
		o := &Owner{latest: &look{seen: seen, last: last}, Tenure: Tenure{TTL: time.Minute}}
		g := protocol.Grant{Token: row.token, Time: seen + row.after.Microseconds()}
		token, from, d := accept(o, g, timing.Instant{Mono: row.heard})
		if ok := token == row.token; ok != (row.from != 0) || ok && (from.Mono != row.from || d != grantLease) {
			t.Errorf("%s: got %v, %v, want %v", row.name, from, ok, row.from)
		}
	}
	o := &Owner{latest: &look{seen: seen, last: last}}
	const wraps = 18_446_744_073_709_552 // as many ns as fit into a Duration, and 384 more
	if token, _, _ := accept(o, protocol.Grant{Token: wraps, Time: seen + wraps}, timing.Instant{Mono: 1001 * ms}); token != 0 {
		t.Error("accepted from a time that is centuries ahead")
	}
	if token, _, _ := accept(new(Owner), protocol.Grant{Token: 71, Time: seen}, timing.Instant{Mono: 1001 * ms}); token != 0 {
		t.Error("accepted before any look was answered")
	}
}

// accept is Accept of a grant.
func accept(o *Owner, g protocol.Grant, now timing.Instant) (int64, timing.Instant, time.Duration) {
	o.redis, o.grant = new(Redis), grant{g.Token, g.Time}
	return o.Accept(now)
}
