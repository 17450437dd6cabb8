//go:build unix

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// The guardian is a second process of the tool. It leads the process group of a command, starts the command there, and kills
// the group, itself included, when the lease is about to end. It is there for a tool that is stopped or killed: the tool tells
// it through a pipe, at each renewal, until when the group may live. If the pipe breaks, the tool is gone, and so is the group.
//
// The other way round, the tool kills the group of a guardian that is stopped or killed. It knows the group from the start,
// and a guardian that is dead starts nothing any more. So there is no instant at which one of the two alone could fail.

// guardVerb makes the tool a guardian. Nobody types it.
const guardVerb = "~guard"

// What a guardian has open beside the files of the command.
const (
	ordersFD  = 3 // until when the group may live, by now, as 8 bytes each time
	reportsFD = 4 // lines: pid N, term, exit N, or fail N and a text
)

// pauses is how long a guardian sleeps at most before it looks at its pipe and at the clock. A timer does not notice that the
// machine was suspended.
const pauses = 100 * time.Millisecond

// relayed are the signals that the tool passes on to the command. ends are those of them that end the waiting for a lock.
var (
	relayed = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
	ends    = relayed[:4]
)

// wall is the time of day.
func wall() time.Duration { return time.Duration(time.Now().UnixNano()) }

// catch subscribes to signals, except those that this process ignores, as under nohup: then the command ignores them too.
func catch(c chan os.Signal, all ...os.Signal) {
	for _, sig := range all {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// guard is what a guardian does. args are the grace between SIGTERM and SIGKILL, and the command.
func guard(args []string) int {
	// A signal to the group is for the command. Signals that are caught are not in the way of it, as those that are ignored
	// would be: it inherits them.
	catch(make(chan os.Signal, 1), append([]os.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}, relayed...)...)
	syscall.CloseOnExec(ordersFD)
	syscall.CloseOnExec(reportsFD)
	_ = syscall.SetNonblock(ordersFD, true)
	reports := os.NewFile(reportsFD, "reports")
	grace, err := time.ParseDuration(args[0])
	if err != nil {
		return statusUsage
	}

	var end time.Duration
	obey(&end)
	go func() {
		runtime.LockOSThread() // see mortal: the thread has to last as long as the command
		p, err := start(args[1:])
		if err != nil {
			fmt.Fprintf(reports, "fail %d %v\n", statusOf(err), err)
			return
		}
		fmt.Fprintln(reports, "pid", p.Pid)
		state, err := p.Wait()
		if err != nil {
			return // the tool will see the end of the lease
		}
		status := state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			status = 128 + int(ws.Signal())
		}
		fmt.Fprintln(reports, "exit", status)
	}()
	for warned := false; ; {
		obey(&end)
		left := end - now()
		if left <= 0 {
			_ = syscall.Kill(0, syscall.SIGKILL)
		}
		if left <= grace && !warned {
			warned = true
			fmt.Fprintln(reports, "term")
			_ = syscall.Kill(0, syscall.SIGTERM)
		}
		if !warned {
			left -= grace
		}
		time.Sleep(min(left, pauses))
	}
}

// obey reads the latest order. What a guardian that was stopped finds in its pipe is more than one. It kills the group if the
// tool is gone.
func obey(end *time.Duration) {
	orders := make([]byte, 1<<16) // what a pipe holds
	for {
		n, err := syscall.Read(ordersFD, orders)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return
		case err != nil || n < 8:
			_ = syscall.Kill(0, syscall.SIGKILL)
		}
		*end = time.Duration(binary.NativeEndian.Uint64(orders[n-8 : n]))
	}
}

// start starts a command in the group of this process.
func start(args []string) (*os.Process, error) {
	file, err := exec.LookPath(args[0])
	if err != nil {
		return nil, err
	}
	return os.StartProcess(file, args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: mortal()})
}

// statusOf is what a shell has for a command that cannot be run.
func statusOf(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return 127
	}
	return 126
}
