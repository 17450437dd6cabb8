package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// mainEnv makes the test binary the tool.
const mainEnv = "HOLDFAST_TEST_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// tool is a run of the tool in a process of its own.
type tool struct {
	*exec.Cmd
	stderr output
	out    *os.File
	lines  *bufio.Reader // of what the command prints
}

func startTool(addr string, args ...string) (*tool, error) {
	t := &tool{Cmd: exec.Command(os.Args[0], args...)}
	t.Env = append(os.Environ(), mainEnv+"=1", "REDIS_URL="+addr)
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t.Stdout, t.Stderr = in, &t.stderr
	t.WaitDelay = time.Minute
	err = t.Start()
	in.Close()
	t.out, t.lines = out, bufio.NewReader(out)
	return t, err
}

// status waits for the end of the tool.
func (t *tool) status() int {
	_ = t.Wait()
	return t.ProcessState.ExitCode()
}

// runTool runs the tool to its end.
func runTool(t *testing.T, addr string, args ...string) result {
	t.Helper()
	p, err := startTool(addr, args...)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(p.lines)
	p.out.Close()
	return result{p.status(), string(out), p.stderr.String()}
}

func TestServerRunPassesOnWhatACommandIsAndReturns(t *testing.T) {
	s := servertest.Redis(t)
	for _, c := range []struct {
		args   []string
		status int
		text   string
	}{
		{[]string{"k", "--", "sh", "-c", "echo $HOLDFAST_KEY ${HOLDFAST_TOKEN:-none}"}, 0, "k 1"},
		{[]string{"k", "sh", "-c", "exit 7"}, 7, ""},
		{[]string{"k", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		{[]string{"k", "--", "no-such-command"}, 127, "no-such-command"},
		{[]string{"k", "--", "/"}, 126, "holdfast"},
		{[]string{"-lead", "k", "--", "echo", "led"}, 0, "led"},
		{[]string{"-shared", "k", "--", "echo", "read"}, 0, "read"},
		{[]string{"k"}, 64, "needs a key and a command"},
		{[]string{"k", "--"}, 64, "needs a key and a command"},
		{[]string{"-try", "-wait", "1s", "k", "true"}, 64, "-try"},
		{[]string{"-ttl", "999ms", "k", "true"}, 64, "-ttl"},
		{[]string{"-ttl", "25h", "k", "true"}, 64, "TTL"},
		{[]string{"-ttl", "3s", "-grace", "2s", "k", "true"}, 64, "-grace"},
		{[]string{"{}", "true"}, 64, "empty hash tag"},
		{[]string{"-redis", "127.0.0.1:1", "-try", "-ttl", "1s", "k", "true"}, 69, "refused"},
	} {
		if r := runTool(t, s.Addr(), append([]string{"run"}, c.args...)...); r.status != c.status || !strings.Contains(r.stdout+r.stderr, c.text) {
			t.Errorf("%q: want status %d and %q, got %v", c.args, c.status, c.text, r)
		}
	}
	if st, err := newLocker(t, s.Client()).Inspect(t.Context(), "k"); err != nil || st.Held {
		t.Errorf("the lock is left behind: %+v, %v", st, err)
	}
	acquire(t, newLocker(t, s.Client()), "k", holdfast.WithLabel("me"))
	for _, args := range [][]string{{"-try"}, {"-wait", "10ms"}, {"-shared", "-try"}} {
		if r := runTool(t, s.Addr(), append(append([]string{"run"}, args...), "k", "echo", "in")...); r.status != 75 || !strings.Contains(r.stderr, "by me") || r.stdout != "" {
			t.Errorf("%q: want 75 and me, got %v", args, r)
		}
	}
}

// begin starts a tool whose command prints a line when it is ready, and waits for that.
func begin(t *testing.T, addr string, args ...string) (p *tool, line string) {
	t.Helper()
	p, err := startTool(addr, append([]string{"run"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill(); p.out.Close() })
	line, err = p.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %v, %s", args, err, p.stderr.String())
	}
	return p, line
}

func TestServerRunOnSeveralMasters(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, servertest.Redis(t).Addr())
	}
	for _, c := range []struct {
		quarantine string
		status     int
		text       string
	}{{"0s", 0, "in"}, {"1h", statusUnavailable, "started"}} {
		if r := runTool(t, strings.Join(addrs, ","), "run", "-try", "-quarantine", c.quarantine, "k", "--", "echo", "in"); r.status != c.status || !strings.Contains(r.stdout+r.stderr, c.text) {
			t.Errorf("quarantine %s: got %v", c.quarantine, r)
		}
	}
}

func TestServerRunRelaysSignals(t *testing.T) {
	s := servertest.Redis(t)
	for _, sig := range relayed {
		n := int(sig.(syscall.Signal))
		p, _ := begin(t, s.Addr(), "k", "--", "sh", "-c", fmt.Sprintf(`trap "echo got; exit 3" %d; echo ready; while :; do sleep 0.01; done`, n))
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if line, _ := p.lines.ReadString('\n'); line != "got\n" {
			t.Errorf("%v: the command printed %q", sig, line)
		}
		if got := p.status(); got != 3 {
			t.Errorf("%v: status %d, want 3: %s", sig, got, p.stderr.String())
		}
		p, _ = begin(t, s.Addr(), "k", "--", "sh", "-c", "echo ready; exec sleep 1000")
		_ = p.Process.Signal(sig)
		if got := p.status(); got != 128+n {
			t.Errorf("%v: status %d, want %d", sig, got, 128+n)
		}
	}
	// While the tool waits for the lock there is no command.
	rdb := s.Client()
	acquire(t, newLocker(t, rdb), "k")
	for _, lead := range []string{"-lead=false", "-lead"} {
		p, err := startTool(s.Addr(), "run", lead, "k", "--", "echo", "in")
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it waits", func() bool {
			st, err := newLocker(t, rdb).Inspect(t.Context(), "k")
			return err == nil && st.Waiting == 1
		})
		_ = p.Process.Signal(syscall.SIGUSR1)
		_ = p.Process.Signal(syscall.SIGTERM)
		out, _ := io.ReadAll(p.lines)
		p.out.Close()
		if got := p.status(); got != 143 || len(out) > 0 {
			t.Errorf("%s: status %d and %q, want 143 and nothing: %s", lead, got, out, p.stderr.String())
		}
		until(t, "it waits no longer", func() bool {
			st, err := newLocker(t, rdb).Inspect(t.Context(), "k")
			return err == nil && st.Waiting == 0
		})
	}
}

// alive reports whether a process runs or could: a zombie cannot.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

func TestServerRunLeavesNothingOfTheGroup(t *testing.T) {
	s := servertest.Redis(t)
	_, line := begin(t, s.Addr(), "k", "--", "sh", "-c", `trap "" TERM HUP; sleep 1000 & echo $!`)
	left, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, newLocker(t, s.Client()), "k")
	if alive(left) {
		t.Error("what the command left behind outlives the lock")
	}
}

func TestServerRunEndsACommandThatLosesItsLock(t *testing.T) {
	s := servertest.Redis(t)
	p, _ := begin(t, s.Addr(), "-ttl", "1s", "k", "--", "sh", "-c", `trap "" TERM; echo ready; while :; do sleep 0.01; done`)
	if r := play(t, s.Addr(), "release", "-yes", "k"); r.status != 0 {
		t.Fatal(r)
	}
	if got := p.status(); got != statusLost || !strings.Contains(p.stderr.String(), "lost") {
		t.Errorf("status %d, %s", got, p.stderr.String())
	}

	// A lease that runs out gives the command time to end.
	proxy := servertest.Proxy(t, s.Addr())
	p, _ = begin(t, proxy.Addr(), "-ttl", "9s", "-grace", "3s", "k", "--", "sh", "-c", `trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	proxy.CutUp()
	if line, _ := p.lines.ReadString('\n'); line != "bye\n" {
		t.Errorf("the command printed %q", line)
	}
	if got := p.status(); got != statusLost || !strings.Contains(p.stderr.String(), "with status 0") {
		t.Errorf("status %d, %s", got, p.stderr.String())
	}
}

func TestServerRunLimit(t *testing.T) {
	s := servertest.Redis(t)
	for range 2 {
		begin(t, s.Addr(), "-limit", "2", "k", "--", "sh", "-c", "echo ready; exec sleep 1000")
	}
	if r := runTool(t, s.Addr(), "run", "-limit", "2", "-try", "k", "true"); r.status != statusHeld {
		t.Errorf("a third of two: %v", r)
	}
}

// A leader whose command fails leads again, and one whose command succeeds is done.
func TestServerRunLeadsAgain(t *testing.T) {
	s := servertest.Redis(t)
	file := t.TempDir() + "/seen"
	r := runTool(t, s.Addr(), "run", "-lead", "k", "--", "sh", "-c", `echo term; test -e "$0" || { touch "$0"; exit 5; }`, file)
	if r.status != 0 || r.stdout != "term\nterm\n" || !strings.Contains(r.stderr, "status 5") {
		t.Errorf("got %v", r)
	}
	p, _ := begin(t, s.Addr(), "-lead", "k", "--", "sh", "-c", `trap "exit 6" TERM; echo ready; while :; do sleep 0.01; done`)
	_ = p.Process.Signal(syscall.SIGTERM)
	if got := p.status(); got != 6 {
		t.Errorf("status %d, want the command's 6: %s", got, p.stderr.String())
	}
}

// roundTTL is long enough for a machine that is busy with many rounds at a time: its margin is nearly a second.
const roundTTL = 6 * time.Second

// stalls are the times in which this process got no processor. A machine that stands still for longer than the margin lets
// nobody keep a lease, so a round in which that was seen, in part, proves nothing.
type stalls struct {
	mu  sync.Mutex
	all []stall
}

type stall struct {
	end  time.Time
	long time.Duration
}

func (s *stalls) watch(ctx context.Context) {
	const nap = 5 * time.Millisecond
	tick := time.NewTicker(nap)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		if long := now.Sub(last) - nap; long > 10*nap {
			s.mu.Lock()
			s.all = append(s.all, stall{now, long})
			s.mu.Unlock()
		}
		last = now
	}
}

// worst returns the longest that ended shortly before t.
func (s *stalls) worst(t time.Time) (long time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if t.Sub(one.end) < roundTTL/3 {
			long = max(long, one.long)
		}
	}
	return long
}

// bed is where rounds take place, one after the other.
type bed struct {
	stalls *stalls
	proxy  *servertest.FaultProxy
	rdb    *redis.Client
	rival  *holdfast.Locker
	rng    *rand.Rand
	key    string
}

// faults are what goes wrong in a round, with the exit status of the tool, 0 for any. What is in range of the random pause
// before a fault: the start of the tool, that of the command, and a renewal or two.
var faults = []struct {
	name   string
	status int
	do     func(b *bed, tool, guardian int)
}{
	{"the tool has no Redis", statusLost, func(b *bed, _, _ int) { b.cut() }},
	{"the tool is stopped", statusLost, func(_ *bed, tool, _ int) { signalTo(tool, syscall.SIGSTOP) }},
	{"the tool is stopped for about a lease", 0, func(b *bed, tool, _ int) {
		signalTo(tool, syscall.SIGSTOP)
		time.AfterFunc(roundTTL*8/10+time.Duration(b.rng.Int64N(int64(roundTTL*3/10))), func() { signalTo(tool, syscall.SIGCONT) })
	}},
	{"the tool is killed", 0, func(_ *bed, tool, _ int) { signalTo(tool, syscall.SIGKILL) }},
	{"the tool is stopped and killed", 0, func(_ *bed, tool, _ int) { signalTo(tool, syscall.SIGSTOP); signalTo(tool, syscall.SIGKILL) }},
	{"the guardian is killed", statusLost, func(_ *bed, _, guardian int) { signalTo(guardian, syscall.SIGKILL) }},
	{"the guardian is stopped, and the tool has no Redis", statusLost, func(b *bed, _, guardian int) { signalTo(guardian, syscall.SIGSTOP); b.cut() }},
	{"the guardian is stopped, and the tool killed", 0, func(_ *bed, tool, guardian int) {
		signalTo(guardian, syscall.SIGSTOP)
		signalTo(tool, syscall.SIGKILL)
		time.AfterFunc(roundTTL/2, func() { signalTo(guardian, syscall.SIGCONT) })
	}},
}

func (b *bed) cut() { b.proxy.CutUp(); b.proxy.CutDown() }

func signalTo(pid int, sig syscall.Signal) {
	if pid > 1 {
		_ = syscall.Kill(pid, sig)
	}
}

// round runs a command that ignores SIGTERM, and has a child, under a lock. It breaks something, and returns an error if
// anything of the command is alive when a rival gets the lock, or while the rival has it.
func (b *bed) round(ctx context.Context, fault int) (err error) {
	f := faults[fault]
	p, err := startTool(b.proxy.Addr(), "run", "-ttl", roundTTL.String(), b.key, "--", "sh", "-c", `trap "" TERM; sleep 1000 & echo $$ $!; wait; wait`)
	if err != nil {
		return err
	}
	defer p.out.Close()
	pids := make(chan []int, 1)
	go func() {
		var all []int
		line, _ := p.lines.ReadString('\n')
		for _, field := range strings.Fields(line) {
			pid, _ := strconv.Atoi(field)
			all = append(all, pid)
		}
		pids <- all
		close(pids)
	}()
	var all []int
	early := b.rng.IntN(4) == 0 && f.status == 0 // before there is a command, perhaps
	if !early {
		if all = <-pids; len(all) != 2 {
			_ = p.Process.Kill()
			return fmt.Errorf("%s: no command: status %d, %s", f.name, p.status(), p.stderr.String())
		}
	}
	time.Sleep(time.Duration(b.rng.Int64N(int64(roundTTL / 2))))
	guardian := 0
	if all != nil {
		guardian, _ = syscall.Getpgid(all[0])
		if guardian == 0 || !alive(all[0]) {
			_ = p.Process.Kill()
			return fmt.Errorf("%s: the command has ended before the fault: status %d: %s", f.name, p.status(), p.stderr.String())
		}
	}
	f.do(b, p.Process.Pid, guardian)
	var lock *holdfast.Lock
	for end := time.Now().Add(hang); ; time.Sleep(2 * time.Millisecond) {
		// It comes at the very moment in which the lease ends, but does not keep the machine busy until then.
		if left := b.rdb.PTTL(ctx, b.key).Val() - 20*time.Millisecond; left > 0 {
			time.Sleep(min(left, roundTTL/10))
		}
		if lock, err = b.rival.TryAcquire(ctx, b.key); err == nil {
			break
		}
		if f.status == 0 && all == nil {
			select {
			case all = <-pids:
			default:
			}
		}
		// The tool of an early fault that came too late, or of a short stop, goes on.
		if errors.Is(err, holdfast.ErrUnavailable) && time.Now().Before(end) {
			continue // the machine is busy
		}
		if !errors.Is(err, holdfast.ErrNotAcquired) || time.Now().After(end) {
			_ = p.Process.Kill()
			return fmt.Errorf("%s: the rival: %w", f.name, err)
		}
		if f.status == 0 && time.Now().After(end.Add(2*roundTTL-hang)) {
			signalTo(p.Process.Pid, syscall.SIGKILL)
		}
	}
	check := func(when string) {
		for _, pid := range append(all[:len(all):len(all)], guardian) {
			if pid > 0 && alive(pid) && err == nil {
				began := time.Now()
				for alive(pid) && time.Since(began) < time.Second {
					time.Sleep(time.Millisecond)
				}
				stood, what := b.stalls.worst(began), "BREACH"
				if stood > roundTTL/25 { // a quarter of the margin
					what = "VOID"
				}
				err = fmt.Errorf("%s: %s: process %d of %v is alive %s, for %v; this process stood still for %v", what, f.name, pid, all, when, time.Since(began), stood)
			}
		}
	}
	check("when the rival gets the lock")
	if err != nil {
		for _, pid := range append(all, guardian, p.Process.Pid) {
			signalTo(pid, syscall.SIGKILL)
		}
	}
	b.proxy.Heal()
	signalTo(p.Process.Pid, syscall.SIGCONT)
	if f.status == 0 { // it may be in line
		time.Sleep(20 * time.Millisecond)
		signalTo(p.Process.Pid, syscall.SIGKILL)
	}
	status := p.status()
	if all == nil {
		if all = <-pids; len(all) > 0 && lock.Err() == nil {
			// It has printed that before the fault, or the guardian has started it late.
			check("after the rival got the lock")
		}
	}
	check("at the end of the tool")
	if f.status != 0 && status != f.status && err == nil {
		err = fmt.Errorf("%s: status %d, want %d: %s", f.name, status, f.status, p.stderr.String())
	}
	return errors.Join(err, lock.Release(ctx))
}

// Nothing of a command outlives its lease, whatever is stopped, killed or cut off. 1,000 rounds with HOLDFAST_SOAK.
func TestServerRunOutlivesNoLease(t *testing.T) {
	t.Parallel()
	s := servertest.Redis(t)
	rounds, beds := 2*len(faults), len(faults)
	if os.Getenv("HOLDFAST_SOAK") != "" {
		rounds, beds = 1000, 24
	}
	if text := os.Getenv("ROUNDS"); text != "" {
		rounds, _ = strconv.Atoi(text)
	}
	var next atomic.Int64
	var mu sync.Mutex
	var failures []string
	var all sync.WaitGroup
	seen := &stalls{}
	go seen.watch(t.Context())
	began := time.Now()
	for i := range beds {
		b := &bed{stalls: seen, proxy: servertest.Proxy(t, s.Addr()), rdb: s.Client(), rival: newLocker(t, s.Client(), holdfast.WithTTL(roundTTL)),
			rng: rand.New(rand.NewPCG(uint64(i), 7)), key: fmt.Sprint("k", i)}
		all.Go(func() {
			for n := next.Add(1) - 1; n < int64(rounds); n = next.Add(1) - 1 {
				if err := b.round(context.Background(), int(n)%len(faults)); err != nil {
					mu.Lock()
					failures = append(failures, err.Error())
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d rounds in %v", rounds, time.Since(began).Round(time.Second))
	for _, f := range failures {
		if strings.HasPrefix(f, "VOID") {
			t.Log(f)
		} else {
			t.Error(f)
		}
	}
}
