package cronlock_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

const replicaEnv = "HOLDFAST_CRONLOCK_REPLICA" // set in a process that is a replica: the Redis, and the journal

func TestMain(m *testing.M) {
	if spec := os.Getenv(replicaEnv); spec != "" {
		if err := process(strings.Split(spec, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// process is a replica until its standard input ends. Each run writes its tick into the journal.
func process(spec []string) error {
	journal, err := os.OpenFile(spec[1], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	locker, err := holdfast.New(redis.NewClient(&redis.Options{Addr: spec[0]}))
	if err != nil {
		return err
	}
	c := cron.New(cron.WithSeconds())
	g := cronlock.New(locker, c, cronlock.WithLateness(10*time.Second)) // of a machine that may be busy
	_, err = g.AddFunc("* * * * * *", "job", func(ctx context.Context) error {
		time.Sleep(time.Millisecond)
		_, tick, _ := cronlock.Tick(ctx)
		_, err := fmt.Fprintln(journal, tick.Unix())
		return err
	})
	if err != nil {
		return err
	}
	c.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := g.Stop(ctx); err != nil {
		return err
	}
	return locker.Shutdown(ctx)
}

// Five processes on a real Redis, of which one is spared: the others are killed, paused and restarted. Each tick runs once.
func TestProcesses(t *testing.T) {
	t.Parallel()
	length := 5 * time.Second
	if os.Getenv("HOLDFAST_SOAK") != "" {
		length = time.Minute
	}
	server := servertest.Redis(t)
	journal := filepath.Join(t.TempDir(), "journal")
	start := func() *servertest.Child {
		t.Helper()
		replica, err := servertest.StartChild(replicaEnv+"="+server.Addr()+"\n"+journal, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(replica.Kill)
		return replica
	}
	leave := func(replica *servertest.Child) {
		t.Helper()
		if err := replica.Leave(time.Minute); err != nil {
			t.Errorf("a replica ended with %v", err)
		}
	}
	spared := start()
	var others []*servertest.Child
	for range 4 {
		others = append(others, start())
	}
	var first int64
	for first == 0 {
		time.Sleep(10 * time.Millisecond)
		text, _ := os.ReadFile(journal)
		_, _ = fmt.Sscan(string(text), &first)
	}
	// ran says whether each tick up to now has run.
	ran := func(now time.Time) bool {
		text, err := os.ReadFile(journal)
		if err != nil {
			t.Fatal(err)
		}
		ticks := map[string]bool{}
		for _, line := range strings.Fields(string(text)) {
			ticks[line] = true
		}
		for tick := first; tick <= now.Unix(); tick++ {
			if !ticks[fmt.Sprint(tick)] {
				return false
			}
		}
		return true
	}
	kills, pauses := 0, 0
	wake := make([]*time.Timer, len(others)) // those that pause
	for end := time.Now().Add(length); time.Now().Before(end); {
		time.Sleep(300*time.Millisecond + rand.N(600*time.Millisecond))
		i := rand.N(len(others))
		if wake[i] != nil {
			wake[i].Stop()
		}
		switch rand.N(3) {
		case 0:
			// A replica that dies between its claim and its run takes the tick with it: it stands still, and is spared where
			// the tick is not run by another.
			if others[i].Pause() != nil {
				continue
			}
			dead := false
			for now, end := time.Now(), time.Now().Add(2*time.Second); !dead && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				dead = ran(now)
			}
			if !dead {
				others[i].Resume()
				continue
			}
			others[i].Kill()
			kills++
		case 1:
			others[i].Resume()
			leave(others[i])
		case 2:
			if replica := others[i]; replica.Pause() == nil {
				wake[i] = time.AfterFunc(rand.N(3*time.Second), replica.Resume)
				pauses++
			}
			continue
		}
		others[i] = start()
	}
	now := time.Now()
	last := now.Unix()
	for end := now.Add(time.Minute); !ran(now) && time.Now().Before(end); { // what is late
		time.Sleep(10 * time.Millisecond)
	}
	for _, o := range others {
		o.Resume()
		leave(o)
	}
	leave(spared)
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[int64]int{}
	for _, line := range strings.Fields(string(text)) {
		var tick int64
		if _, err := fmt.Sscan(line, &tick); err != nil {
			t.Fatal(err)
		}
		runs[tick]++
	}
	for tick := first; tick <= last; tick++ {
		if runs[tick] != 1 {
			t.Errorf("tick %d ran %d times", tick-first, runs[tick])
		}
	}
	t.Logf("%d ticks, %d kills, %d pauses", last-first+1, kills, pauses)
}
