package main

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

// process is this program once more, as one replica: see replicaProcess.
type process struct {
	name   string
	url    string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	events chan event // closed at the end
}

// event is a line that a replica writes.
type event struct{ kind, text string }

// startProcess fills in what follows from the stage.
func startProcess(ctx context.Context, st *stage, r role) (_ *process, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: r.Name, cmd: exec.Command(exe), events: make(chan event, 16)}
	p.cmd.Env = append(os.Environ(), processEnv+"=1")
	p.cmd.Stderr = st.errOut
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
			p.kill()
		}
	}()
	go func() {
		defer close(p.events)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			kind, text, _ := strings.Cut(lines.Text(), " ")
			p.events <- event{kind, text}
		}
	}()
	d := st.servers.database
	// By a pipe, and not by arguments, which everybody can read: the addresses may hold passwords.
	r.Prefix, r.Redis, r.Driver, r.DSN, r.Dialect = st.name, st.servers.redisAddr, d.driver, d.dsn, d.dialect
	if err = json.NewEncoder(p.stdin).Encode(r); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Name, err)
	}
	p.url, err = p.hear(ctx, "listening")
	return p, err
}

// hear returns the text of the next event, which has to be of this kind.
func (p *process) hear(ctx context.Context, kind string) (string, error) {
	select {
	case e, ok := <-p.events:
		switch {
		case !ok:
			return "", fmt.Errorf("%s ended where %q was expected of it", p.name, kind)
		case e.kind != kind:
			return "", fmt.Errorf("%s says %q, not %q", p.name, e, kind)
		}
		return e.text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// confirm lets the payment go through that the replica waits for.
func (p *process) confirm() error {
	_, err := fmt.Fprintln(p.stdin, "paid")
	return err
}

// end tells the replica to shut down.
func (p *process) end() error { return p.stdin.Close() }

// ended waits until it has done so.
func (p *process) ended() error {
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// kill ends the replica, stopped or not; after its end this does nothing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
