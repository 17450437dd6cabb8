package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// relayFlag as the first argument makes this program a relay.
const relayFlag = "-relay"

// relay passes on the bytes of its connections late, half of it in each direction. It is a process of its own, so that its
// processor time and memory are no part of what is measured here. It is not servertest's, which reads and copies each command.
type relay struct {
	process
	addr string
}

func startRelay(ctx context.Context, upstream string, late time.Duration) (*relay, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &relay{process: process{cmd: exec.CommandContext(ctx, self, relayFlag, "-upstream", upstream, "-late", late.String())}}
	if err := r.launch(); err != nil {
		return nil, err
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		r.close()
		return nil, fmt.Errorf("the relay said %q: %w", line, err)
	}
	r.addr = strings.TrimSpace(line)
	return r, nil
}

// close ends the relay, with all connections.
func (r *relay) close() {
	_ = r.in.Close()
	_ = r.cmd.Wait()
}

// pass is the whole life of a relay: it says where it listens in a line on out, and ends with in, as when the parent dies.
func pass(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(relayFlag, flag.ContinueOnError)
	upstream := flags.String("upstream", "", "")
	late := flags.Duration("late", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	addr, serve, err := listenLate(*upstream, *late/2)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, addr); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	select {
	case err := <-failed:
		return errors.Join(errors.New("the relay stopped"), err)
	case err := <-ended:
		return err
	}
}
