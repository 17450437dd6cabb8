// Testrun vets and tests every module of the repository, as far as the machine has what that takes. A package that needs a
// module which cannot be downloaded is not run, and the summary at the end names both:
//
//	NOT RUN: asynqlock: github.com/hibiken/asynq@v0.26.0 cannot be downloaded
//
// Nothing else is excused. A compile error, a checksum that differs and a test that fails all make the exit status 1, and so
// does a run in which nothing could be tested.
//
// Where a module that cannot be downloaded is one of several that a package compares, the files that import it have the build
// constraint !without_NAME, NAME being the last element of the module's path. Testrun sets that tag, so that the rest of the
// package runs, and names what was left out.
//
// Usage, from the root of the repository:
//
//	go run ./internal/servertest/testrun [flags of go test]
//	go run ./internal/servertest/testrun -list [folder]    # of each module, or of that one: its folder, the tags, and what can be built
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &run{dir: ".", env: os.Environ(), out: os.Stdout}
	if len(os.Args) > 1 && os.Args[1] == "-list" {
		os.Exit(r.list(ctx, os.Args[2:]))
	}
	os.Exit(r.test(ctx, os.Args[1:]))
}

// run is one go through the modules below dir.
type run struct {
	dir string
	env []string
	out io.Writer
}

// module is a go.mod and what can be done with it here.
type module struct {
	dir      string // relative to the repository
	tests    int    // files of them
	tags     []string
	packages []string // can be built
	notRun   []string // lines of the summary
	vetErr   error
	err      error // its packages could not be listed, or vet or a test failed
}

// modules finds each go.mod, the one with the most tests first. Folders whose names begin with a dot, and testdata, belong to no
// module.
func (r *run) modules() (found []*module, err error) {
	var tests []string // the folder of each
	byDir := map[string]*module{}
	err = filepath.WalkDir(r.dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != r.dir && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.Name() == "go.mod" && !d.IsDir():
			dir, err := filepath.Rel(r.dir, filepath.Dir(name))
			byDir[filepath.Dir(name)] = &module{dir: filepath.ToSlash(dir)}
			found = append(found, byDir[filepath.Dir(name)])
			return err
		case strings.HasSuffix(d.Name(), "_test.go"):
			tests = append(tests, filepath.Dir(name))
		}
		return nil
	})
	for _, dir := range tests {
		for byDir[dir] == nil && len(dir) > len(r.dir) {
			dir = filepath.Dir(dir)
		}
		if m := byDir[dir]; m != nil {
			m.tests++
		}
	}
	slices.SortStableFunc(found, func(a, b *module) int { return b.tests - a.tests })
	if err == nil && len(found) == 0 {
		err = errors.New("no go.mod here: run it from the root of the repository")
	}
	return found, err
}

// command runs in the module, alone: a workspace would mix other modules' requirements into its own.
func (r *run) command(ctx context.Context, m *module, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(r.dir, filepath.FromSlash(m.dir))
	cmd.Env = append(slices.Clip(r.env), "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets go test end its tests
	return cmd
}

// listed is a package as `go list -e -test -json` prints it.
type listed struct {
	ImportPath string
	Dir        string
	ForTest    string
	Name       string
	Error      *packageError
	DepsErrors []*packageError
}

type packageError struct{ Err string }

// refusal matches what the go command says of a module that its registry does not give away, or that it cannot ask. It does
// not match a checksum that differs, nor a module that arrived broken.
var refusal = regexp.MustCompile(`(?:^|[\s(])([^\s:@]+@v[^\s:]+): (?:` +
	`reading \S+: (?:[45]\d\d |open .*no such file|.*no such file|.*cannot find the (?:file|path))` +
	`|(?:reading \S+: )?(?:Get|Head) "?\S+"?: (?:dial tcp|context deadline|.*(?:no such host|connection refused|connection reset|i/o timeout|TLS handshake|EOF))` +
	`|module lookup disabled by GOPROXY=off)`)

// refused returns the module that could not be downloaded, if that is what the go command complains about.
func refused(complaint string) (mod string, ok bool) {
	if strings.Contains(complaint, "checksum mismatch") || strings.Contains(complaint, "SECURITY ERROR") {
		return "", false
	}
	m := refusal.FindStringSubmatch(complaint)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// tagOf is the build constraint of files that can be done without.
func tagOf(mod string) string {
	name, _, _ := strings.Cut(mod, "@")
	base := path.Base(name)
	if regexp.MustCompile(`^v\d+$`).MatchString(base) {
		base = path.Base(path.Dir(name))
	}
	return "without_" + strings.NewReplacer("-", "_", ".", "_").Replace(base)
}

// survey finds out which packages of m can be built here.
func (r *run) survey(ctx context.Context, m *module) {
	missing, all, err := r.missing(ctx, m)
	if err != nil {
		m.fail(err)
		return
	}
	// With a tag for each module that cannot be had: a package that builds now has left something out.
	var first map[string][]string
	for len(missing) > 0 {
		before := len(m.tags)
		for _, mods := range missing {
			for _, mod := range mods {
				if tag := tagOf(mod); !slices.Contains(m.tags, tag) {
					m.tags = append(m.tags, tag)
				}
			}
		}
		if len(m.tags) == before {
			break
		}
		if first == nil {
			first = missing
		} else {
			for pkg, mods := range missing {
				first[pkg] = append(first[pkg], mods...)
			}
		}
		if missing, all, err = r.missing(ctx, m); err != nil {
			m.fail(err)
			return
		}
	}
	for _, pkg := range all {
		switch gone, left := missing[pkg], first[pkg]; {
		case len(gone) > 0:
			m.notRun = append(m.notRun, fmt.Sprintf("NOT RUN: %s: %s", m.short(pkg), cannot(gone)))
		case len(left) > 0:
			m.notRun = append(m.notRun, fmt.Sprintf("NOT RUN: part of %s: %s", m.short(pkg), cannot(left)))
			fallthrough
		default:
			m.packages = append(m.packages, pkg)
		}
	}
}

// fail notes that the packages could not be listed at all, for want of a module or for another reason.
func (m *module) fail(err error) {
	if mod, ok := refused(err.Error()); ok {
		m.notRun = append(m.notRun, fmt.Sprintf("NOT RUN: %s: %s", m.dir, cannot([]string{mod})))
		return
	}
	m.err = err
}

func cannot(mods []string) string {
	slices.Sort(mods)
	return strings.Join(slices.Compact(mods), ", ") + " cannot be downloaded"
}

// short is the folder of a package, which people know it by.
func (m *module) short(pkg string) string {
	return path.Join(m.dir, strings.TrimPrefix(pkg, "./"))
}

// missing lists the packages of m, as ./folder, and of each the modules that it lacks. A package with any other error lacks
// none: go test will say what is wrong with it.
func (r *run) missing(ctx context.Context, m *module) (missing map[string][]string, all []string, err error) {
	cmd := r.command(ctx, m, "list", "-e", "-test", "-tags", strings.Join(m.tags, ","),
		"-json=ImportPath,Dir,ForTest,Name,Error,DepsErrors", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	root, err := filepath.Abs(cmd.Dir)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, nil, err
	}
	missing = map[string][]string{}
	failing := map[string]bool{} // for another reason
	for list := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, err
		}
		if p.Dir == "" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // what go makes of a package to test it
		}
		dir, err := filepath.EvalSymlinks(p.Dir)
		if err != nil {
			return nil, nil, err
		}
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, nil, err
		}
		pkg := "."
		if rel != "." {
			pkg = "./" + filepath.ToSlash(rel)
		}
		if !slices.Contains(all, pkg) {
			all = append(all, pkg)
		}
		complaints := p.DepsErrors
		if p.Error != nil {
			complaints = append(complaints, p.Error)
		}
		for _, c := range complaints {
			if mod, ok := refused(c.Err); ok {
				missing[pkg] = append(missing[pkg], mod)
			} else {
				failing[pkg] = true
			}
		}
	}
	for pkg := range failing {
		delete(missing, pkg)
	}
	return missing, all, nil
}

// list prints what can be built, a module a line.
func (r *run) list(ctx context.Context, folders []string) int {
	modules, err := r.modules()
	if len(folders) > 0 {
		modules = slices.DeleteFunc(modules, func(m *module) bool { return !slices.Contains(folders, m.dir) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		return 1
	}
	status := 0
	for _, m := range modules {
		r.survey(ctx, m)
		if m.err != nil {
			fmt.Fprintf(os.Stderr, "testrun: %s: %v\n", m.dir, m.err)
			status = 1
		}
		fmt.Fprintf(r.out, "%s\t%s\t%s\n", m.dir, strings.Join(m.tags, ","), strings.Join(m.packages, " "))
	}
	return status
}

// test returns the exit status.
func (r *run) test(ctx context.Context, flags []string) int {
	began := time.Now()
	modules, err := r.modules()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		return 1
	}
	out := &output{to: r.out}
	// First all is compiled and vetted: tests beside compilers find a machine that stands still for seconds at a time.
	var all sync.WaitGroup
	compiled := make(chan *module, len(modules))
	all.Go(func() {
		for m := range compiled {
			m.vetErr = r.vet(ctx, m, flags, out)
		}
	})
	for _, m := range modules {
		if r.survey(ctx, m); m.err == nil && len(m.packages) > 0 {
			r.compile(ctx, m, flags)
			compiled <- m
		}
	}
	close(compiled)
	all.Wait()
	turns := make(chan bool, 3) // at a time, as tests wait for servers and clocks; the one with the most tests counts for two
	for i, m := range modules {
		weight := 1
		if i == 0 {
			weight = 2
		}
		for range weight {
			turns <- true
		}
		all.Go(func() {
			defer func() {
				for range weight {
					<-turns
				}
			}()
			if m.err == nil && len(m.packages) > 0 {
				m.err = r.testModule(ctx, m, flags, out)
				if m.err == nil {
					m.err = m.vetErr
				}
			}
		})
	}
	all.Wait()
	var failed []string
	tested := 0
	for _, m := range modules {
		tested += len(m.packages)
		if m.err != nil {
			failed = append(failed, fmt.Sprintf("FAILED: %s: %v", m.dir, m.err))
		}
	}
	fmt.Fprintf(r.out, "== summary: %d packages vetted and tested in %v\n", tested, time.Since(began).Round(time.Second))
	for _, m := range modules {
		for _, line := range m.notRun {
			fmt.Fprintln(r.out, line)
		}
	}
	for _, line := range failed {
		fmt.Fprintln(r.out, line)
	}
	switch {
	case len(failed) > 0:
		return 1
	case tested == 0:
		fmt.Fprintln(r.out, "FAILED: nothing could be tested")
		return 1
	}
	return 0
}

// compile fills the build cache with what the tests of m are made of. What cannot be compiled go test will say.
func (r *run) compile(ctx context.Context, m *module, flags []string) {
	args := append([]string{"list", "-e", "-export", "-deps", "-test", "-f", "{{.Name}}", "-tags", strings.Join(m.tags, ",")}, build(flags)...)
	cmd := r.command(ctx, m, append(args, m.packages...)...)
	cmd.Env = setUnless(cmd.Env, "GOGC", "300") // the compiler's: a fifth less processor time, for more memory
	_ = cmd.Run()
}

// build is how all is compiled: for the race detector, if flags ask for it, but for a Lua interpreter, SQLite and our models of
// the protocol, which pass nothing on between goroutines and would take a quarter of all processor time under it. A package
// that instantiates generic types of sync or sync/atomic, as miniredis does, cannot be left out: the linker may take its copies
// of them for all. And nothing of ours is compiled for debuggers, which is a tenth of the work.
func build(flags []string) []string {
	const ours = "github.com/holdfast-go/holdfast/"
	args := []string{"-gcflags=" + ours + "...=-dwarf=false"}
	if slices.Contains(flags, "-race") {
		args = append(args, "-race", "-gcflags=github.com/yuin/gopher-lua/...=-race=false", "-gcflags=modernc.org/...=-race=false",
			"-gcflags="+ours+"internal/model/...=-race=false -dwarf=false")
	}
	return args
}

// vet runs go vet, and passes on what it prints.
func (r *run) vet(ctx context.Context, m *module, flags []string, out io.Writer) error {
	args := append([]string{"vet", "-tags", strings.Join(m.tags, ",")}, build(flags)...)
	cmd := r.command(ctx, m, append(args, m.packages...)...)
	cmd.Env = setUnless(cmd.Env, "GOGC", "300")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("vet: %w", err)
	}
	return nil
}

// testModule runs go test, and passes on what it prints.
func (r *run) testModule(ctx context.Context, m *module, flags []string, out *output) error {
	// -s: nobody debugs these programs, and a third of the linking is for debuggers. Traces of panics are as they were.
	args := append([]string{"test", "-vet=off", "-ldflags=-s", "-tags", strings.Join(m.tags, ",")}, build(flags)...)
	args = append(args, flags...)
	cmd := r.command(ctx, m, append(args, m.packages...)...)
	cmd.Env = setUnless(cmd.Env, "GORACE", "atexit_sleep_ms=50") // not a second for each program
	lines := &packageLines{to: out}
	cmd.Stdout, cmd.Stderr = lines, lines // one writer, so that there is one goroutine that writes
	defer lines.flush()
	return cmd.Run()
}

// setUnless adds a variable to env, unless it is there.
func setUnless(env []string, name, value string) []string {
	if slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
		return env
	}
	return append(env, name+"="+value)
}

// output is what several modules write to.
type output struct {
	mu sync.Mutex
	to io.Writer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to.Write(p)
}

// packageLines passes on what go test prints of a package in one piece, which another module's lines do not come into.
type packageLines struct {
	to      io.Writer
	pending []byte
}

// verdict ends what is printed of a package.
var verdict = regexp.MustCompile(`(?m)^(?:ok  |FAIL|\?   )\t.*\n`)

func (l *packageLines) Write(p []byte) (int, error) {
	l.pending = append(l.pending, p...)
	if all := verdict.FindAllIndex(l.pending, -1); all != nil {
		end := all[len(all)-1][1]
		if _, err := l.to.Write(l.pending[:end]); err != nil {
			return 0, err
		}
		l.pending = slices.Delete(l.pending, 0, end)
	}
	return len(p), nil
}

// flush writes what no verdict followed.
func (l *packageLines) flush() {
	_, _ = l.to.Write(l.pending)
	l.pending = nil
}
