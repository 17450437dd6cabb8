package redisconn

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Unsent is the failure of a command that was never sent. Err is the reason.
type Unsent struct{ Err error }

func (u Unsent) Error() string { return u.Err.Error() }

func (u Unsent) Unwrap() error { return u.Err }

// nobodyError is the failure of a dial that was refused, or whose host does not exist.
type nobodyError struct {
	addr string
	err  error
}

func (e *nobodyError) Error() string {
	return fmt.Sprintf("no Redis at %s: start one there, or give the client another address: %v", e.addr, e.err)
}

func (e *nobodyError) Unwrap() error   { return e.err }
func (e *nobodyError) Permanent() bool { return true }

// ErrSilence stands for an answer that did not come in time.
var ErrSilence = errors.New("no answer in time")

// fleeting are the error replies of a server that could not serve right now. The client follows MOVED and ASK itself;
// they get here while a Cluster reshards.
var fleeting = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY", "NOREPLICAS",
	"MISCONF", "OOM", "UNBLOCKED", "ERR max number of clients",
}

// ReplyText returns the text of an error reply, with the code in front; "" for any other error. Redis before 7 wraps an
// error from inside a script: "ERR Error running script (call to f_1f...): @user_script:12: OOM ...".
func ReplyText(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	s := reply.Error()
	if strings.HasPrefix(s, "ERR Error running script") {
		if i := strings.LastIndex(s, "user_script:"); i >= 0 {
			s = strings.TrimLeft(s[i+len("user_script:"):], " -:0123456789")
		}
	}
	return s
}

// Permanent reports whether asking again can only fail again. That is so if Redis refused for a reason that does not
// pass on its own (WRONGTYPE, NOAUTH, NOPERM, a broken script, ...), if the client is closed, or if the error says so
// by a method Permanent.
func Permanent(err error) bool {
	var known interface{ Permanent() bool } // of another package
	if errors.As(err, &known) {
		return known.Permanent()
	}
	if errors.Is(err, redis.ErrClosed) {
		return true
	}
	text := ReplyText(err)
	return text != "" && !fleetingReply(text)
}

func fleetingReply(text string) bool {
	return slices.ContainsFunc(fleeting, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// Harmless reports whether a command that failed with err certainly changed nothing: it was never sent, or Redis
// refused it with a code that comes before the first write. A general ERR may come from the middle of a script.
func Harmless(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return true
	}
	if _, ok := err.(Unsent); ok {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	text := ReplyText(err)
	return text != "" && !strings.HasPrefix(text, "ERR")
}
