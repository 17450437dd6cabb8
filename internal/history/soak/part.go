package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// part is some tests that go on for DURATION from SEED, or run once with more of everything, when HOLDFAST_SOAK is set.
type part struct {
	name   string
	dir    string // of the package, from the root
	tests  string
	again  string         // instead, from the second turn on, without what is the same each time
	counts *regexp.Regexp // in what it prints: one number, to be added up
	unit   string
	tags   string // for the build
	needs  string // a module that a registry may refuse; without it the part is left out

	binary string
	turns  int
	total  int64
	time   time.Duration
}

func all() []*part {
	return []*part{
		{name: "history", dir: "internal/history", tests: "^TestSoak$",
			counts: regexp.MustCompile(`sum: \d+ histories, (\d+) operations`), unit: "operations"},
		{name: "traced-history", dir: "internal/history", tests: "^TestSoak$", tags: "holdfast_trace",
			counts: regexp.MustCompile(`(\d+) events explained`), unit: "events"},
		{name: "traced-core", dir: "core", tests: "^TestTraced$/^server$", tags: "holdfast_trace",
			counts: regexp.MustCompile(`(\d+) events on the server`), unit: "events"},
		{name: "fence", dir: "internal/sqltest", tests: "//History",
			counts: regexp.MustCompile(`fence: (\d+) commits`), unit: "commits"},
		{name: "simulation", dir: "core", tests: "^TestSimulation$",
			counts: regexp.MustCompile(`(\d+) seeds from`), unit: "seeds"},
		{name: "redlock-simulation", dir: "core", tests: "^TestRedLockSimulation$",
			counts: regexp.MustCompile(`(\d+) seeds from`), unit: "seeds"},
		{name: "redlock-storm", dir: "core", tests: "^TestServerRedLockSoak$",
			counts: regexp.MustCompile(`(\d+) holds, `), unit: "holds"},
		{name: "asynqlock", dir: "asynqlock", tests: "^(TestServersUnderFire|TestEachTickIsEnqueuedOnce|TestHotKeyDoesNotStarveOthers|TestLocksAreUnavailable)$",
			counts: regexp.MustCompile(`tasks, (\d+) runs`), unit: "runs", needs: "github.com/hibiken/asynq"},
		{name: "cronlock", dir: "cronlock", tests: "^(TestEachTickOnceWhateverHappens|TestProcesses)$",
			counts: regexp.MustCompile(`(\d+) schedules from seed`), unit: "schedules"},
		{name: "tick-scripts", dir: "core", tests: "^TestTickScriptsInRandomOrder$",
			counts: regexp.MustCompile(`(\d+) seeds from`), unit: "seeds"},
		{name: "fence-script", dir: "core", tests: "^TestFenceTellsHowEachTenureEnded$",
			counts: regexp.MustCompile(`(\d+) seeds from`), unit: "seeds"},
		{name: "model", dir: "internal/model", tests: "^TestSoak$", again: "^TestSoak$/^nothing$",
			counts: regexp.MustCompile(`(\d+) walks`), unit: "walks"},
		{name: "schedule", dir: "internal/model/schedule", tests: "^TestSchedulesKeepTheirPromises$",
			counts: regexp.MustCompile(`(\d+) schedules from seed`), unit: "schedules"},
	}
}

// refused is what go says where a module cannot be downloaded.
var refused = regexp.MustCompile(`dial tcp|no such host|connection refused|i/o timeout|TLS handshake|proxyconnect|unexpected status|Forbidden|Not Found|module lookup disabled`)

// missing says why the module that the part needs cannot be had; nothing where it can. All but a download that fails is an
// error, a checksum that differs too.
func (p *part) missing(ctx context.Context) (why string, err error) {
	if p.needs == "" {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, "go", "list", p.needs)
	cmd.Dir = filepath.Join("..", "..", p.dir)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", nil
	}
	if text := strings.TrimSpace(string(out)); !refused.MatchString(text) || strings.Contains(text, "SECURITY ERROR") {
		return "", fmt.Errorf("%s: %w: %s", p.name, err, text)
	}
	return fmt.Sprintf("%s cannot be downloaded", p.needs), nil
}

// build makes the part's test binary, unless another of the package has it.
func (p *part) build(ctx context.Context, dir string, flags []string) error {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	p.dir = filepath.Join(root, p.dir)
	p.binary = filepath.Join(dir, filepath.Base(p.dir)+p.tags+".test")
	if _, err := os.Stat(p.binary); err == nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-c", "-tags", p.tags, "-o", p.binary}, append(flags, ".")...)...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.name, err, out)
	}
	return nil
}

// run gives the part its turn and adds up what it counted.
func (p *part) run(ctx context.Context, seed uint64, length time.Duration, log string) error {
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	defer out.Close()
	tests := p.tests
	if p.turns > 0 && p.again != "" {
		tests = p.again
	}
	cmd := exec.CommandContext(ctx, p.binary, "-test.run", tests, "-test.v", "-test.timeout", "0", "-test.count", "1")
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "HOLDFAST_SOAK=1", "DURATION="+length.String(), "SEED="+strconv.FormatUint(seed, 10))
	cmd.Stdout, cmd.Stderr = out, out
	began := time.Now()
	err = cmd.Run()
	p.time += time.Since(began)
	p.turns++
	text, _ := os.ReadFile(log)
	p.total += sum(p.counts, text)
	return err
}

// sum adds up the numbers that a pattern finds.
func sum(pattern *regexp.Regexp, text []byte) (total int64) {
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		n, _ := strconv.ParseInt(string(m[1]), 10, 64)
		total += n
	}
	return total
}
