// Package testlimit ends a test program in which one test has gone on for too long, as go test ends a package: with a panic
// that names the test and has the stacks of all goroutines. Test files import it for that, most of them by way of
// internal/servertest.
//
// The limit is two minutes, or HOLDFAST_TEST_LIMIT, where zero is none. A soak has none. Each subtest has a limit of its own,
// and what it waits in [testing.T.Parallel], for subtests or in [Turn] begins it anew. Time in which the whole program stood
// still does not count. An Example has the limit of its package.
package testlimit

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

func init() {
	if testing.Testing() && os.Getenv("HOLDFAST_SOAK") == "" {
		go watch()
	}
}

// Turn locks mu, for a test that has to wait for others.
func Turn(mu *sync.Mutex) { mu.Lock() }

// looks is how often each test is seen before its time is over.
const looks = 12

func watch() {
	limit := 2 * time.Minute
	if text := os.Getenv("HOLDFAST_TEST_LIMIT"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			panic(fmt.Sprintf("HOLDFAST_TEST_LIMIT: %v", err))
		}
	}
	if limit <= 0 {
		return
	}
	seen := map[string]test{} // by goroutine
	buf := make([]byte, 1<<20)
	for range time.Tick(limit / looks) {
		n := runtime.Stack(buf, true)
		for ; n == len(buf); n = runtime.Stack(buf, true) {
			buf = make([]byte, 2*len(buf))
		}
		now := map[string]test{}
		for stack := range bytes.SplitSeq(buf[:n], []byte("\n\n")) {
			id, name := running(stack)
			if name == "" {
				continue
			}
			t, ok := seen[id]
			if !ok {
				t.name = name
			}
			t.looks++
			if now[id] = t; t.looks > looks {
				debug.SetTraceback("all")
				panic(fmt.Sprintf("%s has run for more than %v, in %s:\n\n%s\n", nameOf(stack), limit, t.name, stack))
			}
		}
		seen = now
	}
}

// test is one that runs.
type test struct {
	name  string // of its function; where it was first seen in its Cleanup, of what runs there
	looks int    // how often it was seen
}

// nameOf is the name of the test with this stack. Nothing in package testing tells which tests run, and a stack in a Cleanup says
// less, so it is looked up in what the stack has for the first argument of tRunner. That is a guess at what Go has there: at
// worst it panics, as what follows does.
func nameOf(stack []byte) (name string) {
	name = "a test"
	_, args, _ := bytes.Cut(stack, []byte("\ntesting.tRunner("))
	first, _, _ := bytes.Cut(args, []byte(","))
	address, err := strconv.ParseUint(string(first), 0, strconv.IntSize)
	if err != nil {
		return name // with a question mark, Go does not know
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	p := uintptr(address)
	return strings.Clone((*(**testing.T)(unsafe.Pointer(&p))).Name())
}

// running takes the stack of a goroutine, and returns the goroutine and the function of the test that it runs, if it runs one.
func running(stack []byte) (id, name string) {
	before, _, ok := bytes.Cut(stack, []byte("\ntesting.tRunner("))
	lines := bytes.Split(before, []byte("\n"))                                                // the goroutine, then two for each call, the innermost first
	if !ok || len(lines) < 3 || bytes.HasPrefix(lines[1], []byte("testing.tRunner.func1(")) { // that waits for subtests
		return "", ""
	}
	for _, wait := range []string{"testing.(*T).Run(", "testing.(*T).Parallel(", "internal/servertest/testlimit.Turn("} {
		if bytes.Contains(before, []byte(wait)) {
			return "", ""
		}
	}
	for i := 1; i < len(lines); i += 2 {
		if call := lines[i]; !bytes.HasPrefix(call, []byte("testing.")) || name == "" {
			name = string(call[:max(0, bytes.LastIndexByte(call, '('))])
		}
	}
	return string(bytes.Fields(lines[0])[1]), name
}
