package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// loaderFlag as the first argument makes this program a process that has one contender under load, so that goroutines, memory
// and latencies are that contender's alone.
const loaderFlag = "-load"

// Loader is what such a process does for its parent, by net/rpc over its standard input and output.
type Loader struct {
	target *target
	waiter waiter
	loop   *openLoop
	cease  context.CancelFunc // ends the latest offer

	awaited chan Arrival
}

func carry(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(loaderFlag, flag.ContinueOnError)
	name := flags.String("contender", "", "")
	addr := flags.String("addr", "", "")
	timeouts := flags.Bool("timeouts", false, "")
	pool := flags.Int("pool", 0, "")
	ttl := flags.Duration("ttl", lease, "")
	patience := flags.Duration("patience", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c, err := contenderOf(*name)
	if err != nil {
		return err
	}
	redis.SetLogger(silent{}) // stops fail thousands of dials, and each would be a line
	l := &Loader{target: newTargetWith(*addr, *pool, *timeouts), cease: func() {}, awaited: make(chan Arrival, 1)}
	if l.waiter, err = c.open(*ttl)(l.target); err != nil {
		return err
	}
	if err := warm(context.Background(), l.waiter, "bulk:warm"); err != nil {
		return err
	}
	l.loop = newOpenLoop(*patience, l.call)
	go l.loop.watch(context.Background())
	server := rpc.NewServer()
	if err := server.Register(l); err != nil {
		return err
	}
	server.ServeConn(pipes{io.NopCloser(in), out}) // until in ends
	return nil
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// pipes are the two ways of a connection.
type pipes struct {
	io.ReadCloser
	io.Writer
}

// call takes a lock that is free, and releases it with as much patience again: a service does not leave a lock behind
// because its own caller is gone.
func (l *Loader) call(ctx context.Context, n int64) error {
	lock, err := takeFree(ctx, l.waiter, "bulk:"+strconv.FormatInt(n, 10))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.loop.patience)
	defer cancel()
	return lock.Release(ctx)
}

// Offer begins to let in calls at a rate per second.
func (l *Loader) Offer(rate float64, _ *struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	l.cease = cancel
	go l.loop.offer(ctx, rate)
	return nil
}

// Cease ends that.
func (l *Loader) Cease(struct{}, *struct{}) error {
	l.cease()
	return nil
}

// Settle waits until nobody is inside, and returns how many are when patience ends.
func (l *Loader) Settle(patience time.Duration, inside *int64) error {
	for until := time.Now().Add(patience); ; time.Sleep(loopTick) {
		if *inside = l.loop.inside.Load(); *inside == 0 || time.Now().After(until) {
			return nil
		}
	}
}

// Cycle has a number of callers take and release locks for d, in a closed loop, and returns how often they did in a second.
func (l *Loader) Cycle(d time.Duration, rate *float64) error {
	const callers = 64
	done, began := make([]int, callers), time.Now()
	var wg sync.WaitGroup
	for i := range done {
		wg.Go(func() {
			for ; time.Since(began) < d; done[i]++ {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := l.call(ctx, -int64(done[i]*callers+i))
				cancel()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, n := range done {
		*rate += float64(n) / time.Since(began).Seconds()
	}
	return nil
}

// Windows fills in windows.
func (l *Loader) Windows(of []window, filled *[]window) error {
	for i := range of {
		l.loop.fill(&of[i])
	}
	*filled = of
	return nil
}

// loader is such a process, and a server for it alone, as its parent sees them.
type loader struct {
	process
	rpc     *rpc.Client
	server  *server
	watcher *target
}

// trial says what a loader is to be.
type trial struct {
	contender
	timeouts      bool // ContextTimeoutEnabled
	pool          int
	ttl, patience time.Duration
}

func (t trial) start(ctx context.Context) (_ *loader, err error) {
	l := &loader{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.server, err = startServer(); err != nil {
		return nil, err
	}
	l.watcher = newTarget(l.server.addr, 1)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l.cmd = exec.CommandContext(ctx, self, loaderFlag, "-contender", t.name, "-addr", l.server.addr, "-ttl", t.ttl.String(),
		"-patience", t.patience.String(), "-pool", strconv.Itoa(t.pool), "-timeouts="+strconv.FormatBool(t.timeouts))
	if err := l.launch(); err != nil {
		return nil, err
	}
	l.rpc = rpc.NewClient(pipes{io.NopCloser(l.out), l.in})
	return l, l.ask("Settle", time.Duration(0), new(int64)) // it is warm
}

// close ends both, also a server that is stopped.
func (l *loader) close() {
	if l.cmd != nil && l.cmd.Process != nil {
		_ = l.cmd.Process.Kill()
		_ = l.cmd.Wait()
	}
	if l.watcher != nil {
		_ = l.watcher.close()
	}
	if l.server != nil {
		l.server.Close()
	}
}

func (l *loader) ask(method string, arg, reply any) error {
	if err := l.rpc.Call("Loader."+method, arg, reply); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// offer lets calls come for d.
func (l *loader) offer(ctx context.Context, rate float64, d time.Duration) (from, to int64, err error) {
	from = now()
	err = l.ask("Offer", rate, &struct{}{})
	if err == nil {
		err = pause(ctx, d)
	}
	return from, now(), errors.Join(err, l.ask("Cease", struct{}{}, &struct{}{}))
}

// windows is what happened from each of the times to the next.
func (l *loader) windows(pairs ...[2]int64) ([]window, error) {
	var all []window
	for _, p := range pairs {
		all = append(all, window{From: p[0], To: p[1]})
	}
	err := l.ask("Windows", all, &all)
	return all, err
}
