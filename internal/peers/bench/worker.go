package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// workerFlag as the first argument makes this program one of the processes that another of it measures.
const workerFlag = "-worker"

// work is the whole life of such a process: it opens its Locker, says so in a line on out, reads the time to
// start at from in, contends until in ends, which it also does when the parent dies, and writes its diaries.
func work(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(workerFlag, flag.ContinueOnError)
	name := flags.String("rival", "", "")
	addr := flags.String("addr", "", "")
	goroutines := flags.Int("goroutines", 0, "")
	pool := flags.Int("pool", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(rivals, []string{*name})
	if err != nil {
		return err
	}
	ctx := context.Background()
	team, err := openLocalTeam(ctx, chosen[0], *addr, setting{goroutines: *goroutines, lockers: 1}, *pool)
	if err != nil {
		return err
	}
	defer team.close()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	var at int64
	if _, err := fmt.Fscanln(in, &at); err != nil {
		return fmt.Errorf("the time to start at: %w", err)
	}
	time.Sleep(time.Duration(at - now()))
	if err := team.begin(ctx); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in)
	diaries, err := team.end()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(diaries)
}

// process is a worker as its parent sees it.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// processTeam contends in processes of their own.
type processTeam []*process

func openProcessTeam(ctx context.Context, r rival, addr string, s setting, pool int) (processTeam, error) {
	return launchTeam(ctx, s.processes, workerFlag, "-rival", r.name, "-addr", addr,
		"-goroutines", strconv.Itoa(s.goroutines), "-pool", strconv.Itoa(pool))
}

// launchTeam starts n processes of this program, and returns once each has said that it is ready.
func launchTeam(ctx context.Context, n int, args ...string) (processTeam, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var team processTeam
	for range n {
		p := &process{cmd: exec.CommandContext(ctx, self, args...)}
		if err := p.launch(); err != nil {
			return nil, errors.Join(err, team.close())
		}
		team = append(team, p)
	}
	for _, p := range team {
		if line, err := p.out.ReadString('\n'); err != nil {
			return nil, errors.Join(fmt.Errorf("a process said %q: %w", line, err), team.close())
		}
	}
	return team, nil
}

func (p *process) launch() (err error) {
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.out, p.cmd.Stderr = bufio.NewReader(out), os.Stderr
	return p.cmd.Start()
}

// begin starts all processes at the same moment, a little ahead.
func (t processTeam) begin(context.Context) error {
	at := now() + int64(50*time.Millisecond)
	for _, p := range t {
		if _, err := fmt.Fprintln(p.in, at); err != nil {
			return err
		}
	}
	time.Sleep(time.Duration(at - now()))
	return nil
}

func (t processTeam) end() ([]diary, error) {
	parts, err := collect[[]diary](t)
	var all []diary
	for i, part := range parts {
		for _, d := range part {
			d.Locker = i
			all = append(all, d)
		}
	}
	return all, err
}

// collect ends all processes, and returns what each of them wrote at its end.
func collect[T any](t processTeam) ([]T, error) {
	for _, p := range t { // all of them before any has to be read
		_ = p.in.Close()
	}
	parts, failures := make([]T, len(t)), make([]error, len(t))
	var wg sync.WaitGroup
	for i, p := range t {
		wg.Go(func() {
			err := json.NewDecoder(p.out).Decode(&parts[i])
			failures[i] = errors.Join(err, p.cmd.Wait())
		})
	}
	wg.Wait()
	return parts, errors.Join(failures...)
}

func (t processTeam) close() error {
	for _, p := range t {
		if p.cmd.ProcessState == nil { // not waited for
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}
	return nil
}
