package shop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Process is another process of this program, as one replica: see Child.
type Process struct {
	URL    string
	Events chan Event // closed at the end
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
}

// Event is a line that a replica writes.
type Event struct{ Kind, Text string }

// StartProcess starts a replica, and returns when the replica listens. The replica's standard error goes to errOut.
func (s *Servers) StartProcess(ctx context.Context, r Role, errOut io.Writer) (_ *Process, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{name: r.Name, cmd: exec.Command(exe), Events: make(chan Event, 16)}
	p.cmd.Env = append(os.Environ(), ProcessEnv+"=1")
	p.cmd.Stderr = errOut
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", r.Name, err)
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	go func() {
		defer close(p.Events)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			kind, text, _ := strings.Cut(lines.Text(), " ")
			p.Events <- Event{kind, text}
		}
	}()
	// By a pipe and not by arguments, which everybody can read: the addresses can contain passwords.
	d := s.Database
	r.Prefix, r.Redis, r.Driver, r.DSN, r.Dialect = s.Prefix, s.redisAddr, d.Driver, d.DSN, d.dialect
	if err = json.NewEncoder(p.stdin).Encode(r); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Name, err)
	}
	p.URL, err = p.Hear(ctx, "listening")
	return p, err
}

// Hear returns the text of the next event, which has to be of this kind.
func (p *Process) Hear(ctx context.Context, kind string) (string, error) {
	select {
	case e, ok := <-p.Events:
		switch {
		case !ok:
			return "", fmt.Errorf("%s ended where %q was expected of it", p.name, kind)
		case e.Kind != kind:
			return "", fmt.Errorf("%s says %q, not %q", p.name, e, kind)
		}
		return e.Text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// Tell writes the replica a line.
func (p *Process) Tell(line string) error {
	_, err := fmt.Fprintln(p.stdin, line)
	return err
}

// Pid returns the ID of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// End makes the replica shut down.
func (p *Process) End() error { return p.stdin.Close() }

// Ended waits until the process has ended.
func (p *Process) Ended() error {
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Kill sends SIGKILL, which reaches a stopped process too. It does not wait.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Close kills the replica and waits for its end. A second Close does nothing.
func (p *Process) Close() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
