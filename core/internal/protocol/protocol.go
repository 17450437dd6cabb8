// Package protocol is what holdfast and Redis say to each other, and nothing else: the names of the keys of a lock, the
// Lua scripts, the arguments of each script, and every reply and message as a Go value. It keeps no state and sends
// nothing.
//
// Each script is in a .lua file, whose head lists its keys, arguments and replies. The Go file that embeds the script
// has the function that makes a call of it, and the function that reads its reply and refuses a field that it does not
// know.
package protocol

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"time"
)

const (
	// FenceLife is how long a fence outlives the lease, so that a resent release can still find out how its tenure
	// ended.
	FenceLife = time.Minute
	// TombstoneLife covers how long a command can be under way after its sender has abandoned it: the write timeout of
	// go-redis and the kernel's retransmissions on an orphaned connection.
	TombstoneLife = time.Minute
	// EntryLife is how long a waiter in line counts as alive after a look.
	EntryLife = 5 * time.Second
)

// Boxed once, in ms.
var (
	fenceLife     any = FenceLife.Milliseconds()
	tombstoneLife any = TombstoneLife.Milliseconds()
	noTombstone   any = 0
)

// A Script is a Lua script and the arguments that every call of it begins with, boxed once.
type Script struct {
	keys int
	sha  any // hex SHA-1 of the text, a string
	text any // a string
}

func newScript(keys int, text string) *Script {
	text = bare(text)
	sum := sha1.Sum([]byte(text))
	return &Script{keys: keys, sha: hex.EncodeToString(sum[:]), text: text}
}

// bare drops lines that are only comments, and the indentation of the others. A server reads a script once, but
// miniredis reads it each time.
func bare(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimLeft(line, " \t"); line != "\n" && !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// args appends a whole EVALSHA command to buf: the keys, and then the arguments. For one that is a pointer the command
// has the value, see word.
func (s *Script) args(buf []any, args ...any) (*Script, []any) {
	buf = append(buf, "evalsha", s.sha, s.keys)
	for _, arg := range args {
		switch p := arg.(type) {
		case *string:
			arg = word(p)
		case *int64:
			arg = number(p)
		}
		buf = append(buf, arg)
	}
	return s, buf
}

// Full turns an EVALSHA command into the EVAL that also teaches the server the script.
func (s *Script) Full(args []any) []any {
	return append([]any{"eval", s.text}, args[2:]...)
}

// Text is the script itself.
func (s *Script) Text() string { return s.text.(string) }

// Call is an EVALSHA command with any keys and arguments; for tests.
func (s *Script) Call(args ...any) (*Script, []any) { return s.args(nil, args...) }

// Runs reports whether a command runs s.
func (s *Script) Runs(args []string) bool {
	return len(args) > 1 && (args[1] == s.sha || args[1] == s.text)
}

// ScriptName returns the script that a command runs, by its name in Scripts; "" for another command.
func ScriptName(args []string) string {
	for _, s := range Scripts {
		if s.Runs(args) {
			return s.Name
		}
	}
	return ""
}

// Scripts lists all scripts. A script for owners that let others in has the name of the one without.
var Scripts = []struct {
	Name string
	*Script
}{
	{"acquire", AcquireScript}, {"acquire", PermitScript}, {"forget", ForgetScript}, {"forget", ReturnScript},
	{"renew", RenewScript}, {"renew", KeepScript}, {"inspect", InspectScript}, {"ping", PingScript}, {"claim", claimScript},
	{"vote", VoteScript}, {"bundle", BundleScript}, {"sustain", SustainScript}, {"yield", YieldScript}, {"tick", TickScript}, {"withdraw", WithdrawScript},
}

// fields holds the elements of a reply, which are read one after the other.
type fields struct {
	list []any
	bad  bool // one was missing, or of another type
}

func fieldsOf(val any) fields {
	list, _ := val.([]any)
	return fields{list: list}
}

func (f *fields) next() (v any) {
	if len(f.list) == 0 {
		f.bad = true
		return nil
	}
	v, f.list = f.list[0], f.list[1:]
	return v
}

func (f *fields) number() int64 {
	n, ok := f.next().(int64)
	f.bad = f.bad || !ok
	return n
}

func (f *fields) text() string {
	s, ok := f.next().(string)
	f.bad = f.bad || !ok
	return s
}

// complete reports whether all elements were there, and no others.
func (f *fields) complete() bool { return !f.bad && len(f.list) == 0 }
