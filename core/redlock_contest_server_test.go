package holdfast_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// TestRedLockContender is a process of TestServerRedLockContention: 8 goroutines that go on taking one lock until the
// given time.
func TestRedLockContender(t *testing.T) {
	if os.Getenv(contendEnv) == "" {
		t.Skip("a part of TestServerRedLockContention")
	}
	var addrs string
	var from, till int64
	if _, err := fmt.Sscan(os.Getenv(contendEnv), &addrs, &from, &till); err != nil {
		t.Fatal(err)
	}
	var clients []*redis.Client
	for addr := range strings.SplitSeq(addrs, ",") {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	l := quorum(t, clients, holdfast.WithTTL(time.Minute), holdfast.WithNodeTimeout(20*time.Second)) // on a busy machine an answer takes its time
	time.Sleep(time.Until(time.Unix(0, from)))
	turns := takeTurns(t, slices.Repeat([]*holdfast.Locker{l}, 8), time.Unix(0, till))
	for _, s := range turns {
		fmt.Println("turn", s.worker, s.token, s.asked, s.from, s.to)
	}
	shutdown(t, l)
	fmt.Println("over")
}

func TestServerRedLockContention(t *testing.T) {
	t.Parallel()
	const processes, workers, length = 8, 8, time.Second
	f := startFleet(t, 5)
	from := time.Now().Add(time.Second)
	plan := fmt.Sprint(strings.Join(f.addrs(0, 1, 2, 3, 4), ","), " ", from.UnixNano(), " ", from.Add(length).UnixNano())
	var mu sync.Mutex
	var turns []turn
	var all sync.WaitGroup
	var over atomic.Int32
	for p := range processes {
		child := exec.Command(os.Args[0], "-test.run=^TestRedLockContender$", "-test.v")
		child.Env = append(os.Environ(), contendEnv+"="+plan)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
		all.Go(func() {
			for in := bufio.NewScanner(out); in.Scan(); {
				s := turn{process: p}
				if _, err := fmt.Sscanf(in.Text(), "turn %d %d %d %d %d", &s.worker, &s.token, &s.asked, &s.from, &s.to); err == nil {
					mu.Lock()
					turns = append(turns, s)
					mu.Unlock()
				} else if in.Text() == "over" {
					over.Add(1)
				} else if strings.Contains(in.Text(), "_test.go") {
					t.Errorf("process %d: %s", p, in.Text())
				}
			}
		})
	}
	within(t, "the processes", all.Wait)
	if n := over.Load(); n != processes || len(turns) == 0 {
		t.Fatalf("%d of %d processes came to their end", n, processes)
	}
	handovers := judgeTurns(t, turns, processes*workers)
	for i, s := range f {
		c := s.CommandStats(t)
		t.Logf("node %d: %.1f scripts for each hand-over between processes", i, float64(c["evalsha"]+c["eval"])/float64(handovers))
	}
	f.empty(t, "k")
}

// 64 that stand in line in Redis, each by itself.
func TestServerRedLockSixtyFourWaiters(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	l := f.locker(t, holdfast.WithLocalHandover(0, 0))
	ls := slices.Repeat([]*holdfast.Locker{l}, 64)
	takeTurns(t, ls, time.Now()) // the connections, and the scripts
	for _, s := range f {
		s.ResetStats(t)
	}
	turns := takeTurns(t, ls, time.Now().Add(3*time.Second))
	judgeTurns(t, turns, len(ls))
	for i, s := range f {
		c := s.CommandStats(t)
		per := float64(c["evalsha"]+c["eval"]) / float64(len(turns))
		t.Logf("node %d: %.1f scripts for each hold", i, per)
		if per > 10 {
			t.Errorf("node %d: %.1f commands for each hold, want at most 10", i, per)
		}
	}
	shutdown(t, l)
	f.empty(t, "k")
}

const contendEnv = "HOLDFAST_TEST_CONTEND"

// turn is one hold, as its process saw it, by the wall clock in ns.
type turn struct {
	process, worker int
	token           int64
	asked, from, to int64
}

// takeTurns has one goroutine for each of ls take the lock until till, and each at least once.
func takeTurns(t *testing.T, ls []*holdfast.Locker, till time.Time) (turns []turn) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for w, l := range ls {
		all.Go(func() {
			for {
				s := turn{worker: w, asked: time.Now().UnixNano()}
				lock, err := l.Acquire(background, "k")
				if err != nil {
					t.Error(err)
					return
				}
				s.from, s.token = time.Now().UnixNano(), lock.Token()
				s.to = time.Now().UnixNano()
				if lock.Err() != nil {
					s.to = s.from
				}
				mu.Lock()
				turns = append(turns, s)
				mu.Unlock()
				if err := lock.Release(background); err != nil {
					t.Error(err)
				}
				if time.Now().After(till) {
					return
				}
			}
		})
	}
	all.Wait()
	return turns
}

// judgeTurns checks that no two had the lock at once and that tokens rise, and reports how it went. It returns the number of
// times that the lock went to another process.
func judgeTurns(t *testing.T, turns []turn, workers int) (handovers int) {
	t.Helper()
	slices.SortFunc(turns, func(a, b turn) int { return int(a.from - b.from) })
	var worst time.Duration
	holds := map[[2]int]int{}
	for i, s := range turns {
		worst = max(worst, time.Duration(s.from-s.asked))
		holds[[2]int{s.process, s.worker}]++
		if i == 0 {
			continue
		}
		before := turns[i-1]
		if s.from < before.to || s.token <= before.token {
			t.Errorf("token %d from %d on, beside token %d until %d", s.token, s.from, before.token, before.to)
		}
		if s.process != before.process {
			handovers++
		}
	}
	if len(holds) != workers {
		t.Errorf("%d of %d had the lock", len(holds), workers)
	}
	least := len(turns)
	for _, n := range holds {
		least = min(least, n)
	}
	d := time.Duration(turns[len(turns)-1].to - turns[0].from).Seconds()
	t.Logf("%.0f holds/s, %.0f hand-overs between processes/s, the longest wait was %v, each had it %d times or more",
		float64(len(turns))/d, float64(handovers)/d, worst.Round(time.Millisecond), least)
	return handovers
}
