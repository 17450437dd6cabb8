package holdfast_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/core"
)

// wantIs checks that err matches each target.
func wantIs(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("got error %v, want one that matches %v", err, target)
		}
	}
}

// fine fails the test if err is not nil, and says of what it is; must ends it.
func fine(t *testing.T, err error, of ...any) {
	t.Helper()
	if err != nil {
		t.Error(append(of, err)...)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// failures are what a call may fail with whatever happens.
var failures = []error{holdfast.ErrNotAcquired, holdfast.ErrUnavailable, holdfast.ErrLost, holdfast.ErrClosed}

// isOf tells whether err matches one of among.
func isOf(err error, among ...error) bool {
	return slices.ContainsFunc(among, func(e error) bool { return errors.Is(err, e) })
}

// expected fails the test if err is a failure that is not among them.
func expected(t *testing.T, err error) {
	t.Helper()
	if err != nil && !isOf(err, failures...) {
		t.Error(err)
	}
}

// contains tells whether the text of err has all parts.
func contains(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}

// same checks the text of err, all of it.
func same(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// reported collects what a Locker reports.
type reported struct {
	mu   sync.Mutex
	errs []error
}

func (r *reported) trace() *holdfast.Trace {
	return &holdfast.Trace{NodeError: func(e holdfast.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, e.Err)
	}}
}

func (r *reported) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.errs...)
}

// count tells how many reports have all the parts.
func (r *reported) count(parts ...string) int {
	n := 0
	for _, err := range r.all() {
		if contains(err, parts...) {
			n++
		}
	}
	return n
}
