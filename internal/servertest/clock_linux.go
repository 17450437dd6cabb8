package servertest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"
)

//go:embed preload/clock.c
var clockSource string

// clockLibrary is compiled once for all tests of the process.
var clockLibrary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "holdfast-clock-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	compiler := ""
	for _, name := range []string{"clang", "gcc", "cc"} { // rather the last
		if path, err := exec.LookPath(name); err == nil {
			compiler = path
		}
	}
	if compiler == "" {
		return nil, errors.New("there is no C compiler: no cc, gcc or clang in PATH")
	}
	library := filepath.Join(dir, "clock.so")
	cmd := exec.Command(compiler, "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o", library, "-x", "c", "-", "-ldl")
	cmd.Stdin = strings.NewReader(clockSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", compiler, err, out)
	}
	return os.ReadFile(library)
})

// newClock makes the file of a clock. It returns what a server that goes by it
// has in its environment, and the file's memory.
func newClock(t testing.TB, file string) (env []string, mem []byte, err error) {
	code, err := clockLibrary()
	if err != nil {
		return nil, nil, err
	}
	library := filepath.Join(t.TempDir(), "clock.so")
	if err := os.WriteFile(library, code, 0o700); err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(file, make([]byte, 8), 0o600); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	mem, err = syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return []string{"LD_PRELOAD=" + library, "HOLDFAST_CLOCK=" + file}, mem, nil
}

// add is one store, so that no server ever reads half of it.
func (c *Clock) add(d int64) int64 { return atomic.AddInt64((*int64)(unsafe.Pointer(&c.mem[0])), d) }
