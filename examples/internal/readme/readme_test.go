package readme

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"

	// What the snippets import, so that go builds it before the test, and names what it cannot download.
	_ "github.com/gin-gonic/gin"
	_ "github.com/holdfast-go/holdfast/core"
	_ "github.com/holdfast-go/holdfast/core/redlock"
	_ "github.com/holdfast-go/holdfast/cronlock"
	_ "github.com/holdfast-go/holdfast/ginlock"
	_ "github.com/holdfast-go/holdfast/httplock"
	_ "github.com/holdfast-go/holdfast/sqlfence"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/robfig/cron/v3"
	_ "modernc.org/sqlite"
)

// papers have Go code, which continues the main that the first of them begins with.
var papers = []string{"README.md", "using.md", "moving.md", "examples.md"}

// read returns the sections of a paper. Each is here as a link, for the go command alone: it notices what changes in this
// module, and would otherwise report an older run's result for the new text.
func read(t *testing.T, paper string) []section {
	t.Helper()
	text, err := os.ReadFile(paper)
	if err != nil {
		t.Fatal(err)
	}
	all := sections(string(text))
	if len(all) == 0 || strings.Count(string(text), "```go") != count(all) {
		t.Fatalf("%s: found %d blocks of Go code in %d sections, want %d", paper, count(all), len(all), strings.Count(string(text), "```go"))
	}
	return all
}

// TestReadme builds and runs the Go code of README.md, and of the pages that it leads to, as it is printed, and compares what
// it prints with what the paper says behind it. Only `package main` and the imports are added, and nothing is replaced but the
// addresses "localhost:63..": each of them becomes that of a miniredis, because a test must not reach for whatever Redis the
// machine has.
func TestReadme(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	first := read(t, papers[0])[0]
	for _, paper := range papers {
		for _, s := range read(t, paper) {
			t.Run(paper+"/"+s.title, func(t *testing.T) {
				if err := try(t, paper, first, s); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A newcomer without a Redis reads one line, which says so. It is the first, and there are no others of the client before it.
func TestReadmeWithoutRedis(t *testing.T) {
	nobody := unused(t)
	t.Setenv("REDIS_ADDR", nobody)
	first := read(t, papers[0])[0]
	t.Run("one", func(t *testing.T) { wantNobody(t, first, first, nobody, nil, "") })

	// One master is there, the others are not.
	t.Setenv("REDIS_ADDR", "")
	addrs := map[string]string{`"localhost:6379"`: newServer(t), `"localhost:6380"`: nobody, `"localhost:6381"`: unused(t)}
	i := slices.IndexFunc(read(t, papers[1]), func(s section) bool { return s.title == "Several masters" })
	t.Run("several", func(t *testing.T) {
		wantNobody(t, first, read(t, papers[1])[i], nobody, addrs, first.snippets[0].prints+"\n")
	})
}

// wantNobody wants a program to end with one line, which says that nobody listens, behind what it has printed before.
func wantNobody(t *testing.T, first, s section, nobody string, addrs map[string]string, before string) {
	p, err := assemble(first, s, "README.md")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := build(t, p, address.ReplaceAllStringFunc(p.source, func(literal string) string { return strconv.Quote(addrs[literal]) }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = run(t, time.Minute, t.TempDir(), binary); err == nil {
		t.Fatal("it runs without a Redis")
	}
	_, said, _ := strings.Cut(err.Error(), "\n")
	said = strings.TrimPrefix(said, before)
	if want := "no Redis at " + nobody + ": start one there, or "; strings.Count(said, "\n") != 1 || !strings.Contains(said, want) {
		t.Errorf("it says\n%s\nwant one line with %q", said, want)
	}
}

// unused returns an address at which nobody listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func count(all []section) (n int) {
	for _, s := range all {
		n += len(s.snippets)
	}
	return n
}

// A paper that is wrong is reported, each mistake at its line.
func TestWrongReadmeIsReported(t *testing.T) {
	const first = "# Title\n\n```go\nfunc main() {\n\tname := \"a\"\n\tfmt.Println(name)\n}\n```\n\nIt prints `a`.\n"
	tests := []struct {
		name, paper string
		want        string // part of the error; empty for none
	}{
		{"nothing", first + "\n## Next\n\n```go\nfmt.Println(name + name)\n```\n\nIt prints `aa`, at last.\n", ""},
		{"another output", first + "\n## Next\n\n```go\nfmt.Println(name)\n```\n\nIt prints `aa`.\n", `got "a\na\n", want "a\naa\n"`},
		{"no output", first + "\n## Next\n\n```go\nfmt.Println(name)\n```\n\nIt is nice. It prints `a`.\n", "README.md:15: what this code prints is not said"},
		{"an unknown name", first + "\n## Next\n\n```go\nfmt.Println(name)\nlocker.Do()\n```\n\nIt prints `a`.\n", "README.md:16: undefined: locker"},
		{"no Go", first + "\n## Next\n\n```go\nfmt.Println(name\n```\n\nIt prints `a`.\n", "README.md:15:"},
		{"nothing to run", strings.Replace(first, "main", "mine", 1), "is not one function main"},
		{"an exit", first + "\n## Next\n\n```go\nfmt.Println(name)\nlog.Fatal(name)\n```\n\nIt prints `a`.\n", "exit status 1"},
		{"bad form", first + "\n## Next\n\n```go\nfmt.Println( name )\n```\n\nIt prints `a`.\n", "README.md:15: not as gofmt writes it"},
		{"a test", first + "\n## Next\n\n```go\nfunc TestName(t *testing.T) {\n\tt.Error(1)\n}\n```\n\nIt prints `PASS`.\n", "exit status 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := sections(tt.paper)
			err := try(t, "README.md", all[0], all[len(all)-1])
			if err == nil && tt.want != "" || err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// try builds and runs a section of a paper.
func try(t *testing.T, paper string, first, s section) error {
	t.Helper()
	p, err := assemble(first, s, paper)
	if err != nil {
		return err
	}
	if slices.Contains(p.imports, imports["asynq"]) && !withAsynq {
		t.Skip("left out: github.com/hibiken/asynq")
	}
	binary, err := build(t, p, withServers(t, p.source))
	if err != nil {
		return err
	}
	got, err := run(t, time.Minute, filepath.Dir(binary), binary)
	if err != nil {
		return err
	}
	if got != p.prints {
		return fmt.Errorf("%s:%d: got %q, want %q", paper, s.snippets[0].line, got, p.prints)
	}
	return nil
}

// build makes a program of source.
func build(t *testing.T, p program, source string) (binary string, err error) {
	t.Helper()
	dir := t.TempDir()
	file, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	args := []string{"build"}
	if p.test {
		file, args = filepath.Join(dir, "main_test.go"), []string{"test", "-c"}
	}
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if raced {
		// As make test builds them, so that they are in the build cache.
		args = append(args, "-race", "-gcflags=github.com/yuin/gopher-lua/...=-race=false", "-gcflags=modernc.org/...=-race=false")
	}
	// Beside the module: `go build` takes a file from anywhere, and its imports from the module that it is called in.
	_, err = run(t, 5*time.Minute, filepath.Join("..", ".."), "go", append(args, "-ldflags=-w", "-o", binary, file)...)
	return binary, err
}

// run returns what a program writes to its standard output. patience only catches programs that hang.
func run(t *testing.T, patience time.Duration, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("it did not end within %v", patience))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", filepath.Base(name), cmp.Or(context.Cause(ctx), err), stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String(), nil
}

var address = regexp.MustCompile(`"localhost:63\d\d"`)

// withServers replaces each address by that of a miniredis.
func withServers(t *testing.T, source string) string {
	t.Helper()
	addrs := map[string]string{}
	return address.ReplaceAllStringFunc(source, func(literal string) string {
		if addrs[literal] == "" {
			addrs[literal] = fmt.Sprintf("%q", newServer(t))
		}
		return addrs[literal]
	})
}

// newServer returns the address of a Redis that has been up for a day, which a miniredis does not say of itself: several
// masters take no vote from one that does not tell.
func newServer(t *testing.T) string {
	t.Helper()
	redis := miniredis.RunT(t)
	redis.ClockTTL(true)
	info := fmt.Sprintf("# Server\r\nrun_id:%040s\r\nuptime_in_seconds:86400\r\n", redis.Port())
	redis.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool { // within a script redis is locked
		if cmd == "INFO" {
			c.WriteBulk(info)
		}
		return cmd == "INFO"
	})
	return redis.Addr()
}
