//go:build unix

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// command runs under a lock, with a guardian, in a process group of its own.
type command struct {
	args  []string
	ttl   time.Duration
	grace time.Duration // between SIGTERM and SIGKILL, when the lease runs out
	relay relay
}

// newCommand returns an error for a command that is not there. It calls stop with the first signal that is to end the tool.
func newCommand(args []string, s *settings, stop func(os.Signal)) (*command, error) {
	if _, err := exec.LookPath(args[0]); err != nil {
		return nil, &exit{statusOf(err), err.Error()}
	}
	adopt()
	c := &command{args: args, ttl: s.ttl, grace: s.grace, relay: relay{stop: stop}}
	sigs := make(chan os.Signal, 64)
	catch(sigs, relayed...)
	go c.relay.pass(sigs)
	return c, nil
}

// margin is how long before lock.Deadline the group is to be gone. The deadline has a margin of its own, before Redis drops
// the lease; both together are for the time that it takes to wake up, and to die.
func (c *command) margin() time.Duration { return max(50*time.Millisecond, c.ttl/10) }

// run runs the command under lock, and returns its exit status when nothing of its group is left. lost says that the lease
// ran out, or that the lock was lost, so that the command was told to end, or killed.
func (c *command) run(lock *holdfast.Lock) (status int, lost bool, err error) {
	sigs := make(chan os.Signal, 64)
	if sig := c.relay.begin(sigs); sig != nil {
		return signalled(sig), false, nil
	}
	defer c.relay.end()

	ours, orders, err := os.Pipe()
	if err != nil {
		return 0, false, err
	}
	defer orders.Close()
	reports, theirs, err := os.Pipe()
	if err != nil {
		ours.Close()
		return 0, false, err
	}
	defer reports.Close()
	var end time.Duration
	// renew tells the guardian until when the group may live. It returns what is left of that. The clock is read first: a
	// process can be stopped anywhere.
	renew := func() time.Duration {
		at := now()
		left := time.Until(lock.Deadline()) - c.margin()
		if next := at + left; next > end+time.Millisecond || left <= 0 {
			end = next
			_ = orders.SetWriteDeadline(time.Now().Add(time.Millisecond)) // it is full if the guardian is stopped
			_, _ = orders.Write(binary.NativeEndian.AppendUint64(nil, uint64(end)))
		}
		return left
	}
	if renew() <= 0 {
		return 0, true, nil
	}
	stdin := os.Stdin
	if columns, _ := windowSize(stdin); columns > 0 { // to read from it, the group would have to be in the foreground
		if stdin, err = os.Open(os.DevNull); err != nil {
			return 0, false, err
		}
		defer stdin.Close()
	}
	self, err := os.Executable()
	if err == nil {
		_ = os.Setenv("HOLDFAST_KEY", lock.Key()) // rather than twice in an environment, where the first counts
		_ = os.Setenv("HOLDFAST_TOKEN", strconv.FormatInt(lock.Token(), 10))
		args := append([]string{os.Args[0], guardVerb, c.grace.String()}, c.args...)
		var p *os.Process
		p, err = os.StartProcess(self, args, &os.ProcAttr{
			Files: []*os.File{stdin, os.Stdout, os.Stderr, ours, theirs},
			Sys:   &syscall.SysProcAttr{Setpgid: true},
		})
		if err == nil {
			g := &group{id: p.Pid, lines: make(chan string, 4), status: -1}
			_ = p.Release()
			ours.Close()
			theirs.Close()
			go g.read(reports)
			return g.watch(sigs, renew, min(max(c.ttl/100, 5*time.Millisecond), pauses))
		}
	}
	ours.Close()
	theirs.Close()
	return 0, false, err
}

// group is the process group of a guardian and of its command.
type group struct {
	id     int
	pid    int // of the command; 0 before it runs
	status int // of the command; -1 while it runs
	lost   bool
	err    error
	lines  chan string // that the guardian reports; closed at its end
}

func (g *group) read(reports io.Reader) {
	defer close(g.lines)
	for s := bufio.NewScanner(reports); s.Scan(); {
		g.lines <- s.Text()
	}
}

// heed takes in a report.
func (g *group) heed(line string) {
	word, rest, _ := strings.Cut(line, " ")
	number, text, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(number)
	switch word {
	case "pid":
		g.pid = n
	case "term":
		g.lost = true
	case "exit":
		g.status = n
	case "fail":
		g.status, g.err = n, &exit{n, text}
	}
}

// watch waits for the end of the command or of the lease, kills what is left of the group, and waits until it is gone.
func (g *group) watch(sigs <-chan os.Signal, renew func() time.Duration, every time.Duration) (status int, lost bool, err error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for open := true; open && g.status < 0; {
		var signals <-chan os.Signal
		if g.pid > 0 {
			signals = sigs
		}
		var line string
		select {
		case line, open = <-g.lines:
			g.heed(line)
		case sig := <-signals:
			_ = syscall.Kill(g.pid, sig.(syscall.Signal))
		case <-tick.C:
			reap()
		}
		if renew() <= 0 {
			break
		}
	}
	_ = syscall.Kill(-g.id, syscall.SIGKILL)
	for line := range g.lines { // what a tool that was stopped has not read
		g.heed(line)
	}
	if g.status < 0 {
		g.lost, g.status = true, 128+int(syscall.SIGKILL)
	}
	if !g.gone(10 * time.Second) {
		g.err = errLingers
	}
	return g.status, g.lost, g.err
}

// gone waits until the group is.
func (g *group) gone(patience time.Duration) bool {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		reap()
		if errors.Is(syscall.Kill(-g.id, 0), syscall.ESRCH) {
			return true
		}
	}
	return false
}

// reap takes note of the end of all children that have ended.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// relay passes the signals that the tool gets on to the command, once that runs.
type relay struct {
	stop func(os.Signal)

	mu      sync.Mutex // guards what follows
	to      chan<- os.Signal
	stopped os.Signal // the first that is to end the tool
}

func (r *relay) pass(sigs <-chan os.Signal) {
	for sig := range sigs {
		r.mu.Lock()
		if r.to != nil {
			select {
			case r.to <- sig:
			default: // the command has not taken the 64 before
			}
		}
		if r.stopped == nil && slices.Contains(ends, sig) {
			r.stopped = sig
			r.stop(sig)
		}
		r.mu.Unlock()
	}
}

// begin has signals go to a command, unless one came before that is to end the tool, which it returns.
func (r *relay) begin(to chan<- os.Signal) os.Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped == nil {
		r.to = to
	}
	return r.stopped
}

func (r *relay) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = nil
}

// signalled is the exit status of a process that a signal has ended.
func signalled(sig os.Signal) int {
	n, _ := sig.(syscall.Signal)
	return 128 + int(n)
}
