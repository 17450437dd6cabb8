package servertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/model/trace"
	"github.com/redis/go-redis/v9"
)

// Trace is what the scripts on one server write about themselves, in a build with the tag holdfast_trace, and the checker
// that holds it against the specification.
type Trace struct {
	trace.Checker
	Client *redis.Client // of the server

	first   string // of those that were checked and may still be on the list
	checked int    // how many
}

// Finish checks what is left. It returns an error if the server knows of more events than were checked: then some were lost,
// or the scripts write them elsewhere. A server that does not answer any more says nothing.
func (tr *Trace) Finish() error {
	for {
		n, err := tr.Check()
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		had, err := tr.Client.Get(context.Background(), trace.List+":n").Int64()
		if err != nil || had == tr.Last() {
			return nil
		}
		if n, err = tr.Check(); n == 0 { // none came in between
			return errors.Join(err, fmt.Errorf("the scripts have written %d events, and %d were checked", had, tr.Last()))
		}
	}
}

// drop takes events off the list, unless the server has forgotten them since.
const drop = "if redis.call('LINDEX', KEYS[1], 0) == ARGV[1] then redis.call('LTRIM', KEYS[1], ARGV[2], -1) end return 1"

// Check checks up to 100 events, which are some KB each, and returns how many there were; none from a server that does not
// answer. It takes them off the list only afterwards, because the answer to a command that reads and takes may be lost.
func (tr *Trace) Check() (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	texts, err := tr.Client.LRange(ctx, trace.List, 0, 99).Result()
	if err != nil || len(texts) == 0 {
		return 0, nil
	}
	if texts[0] != tr.first {
		tr.first, tr.checked = texts[0], 0
	}
	for _, text := range texts[min(tr.checked, len(texts)):] {
		if err := tr.Feed(text); err != nil {
			return n, err
		}
		n++
	}
	tr.checked = len(texts)
	if tr.Client.Eval(ctx, drop, []string{trace.List}, tr.first, tr.checked).Err() == nil {
		tr.first, tr.checked = "", 0
	}
	return n, nil
}
