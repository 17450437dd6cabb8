package crontest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	cron "github.com/netresearch/go-cron"
	"github.com/redis/go-redis/v9"
)

const (
	robfig = `"github.com/robfig/cron/v3"`
	fork   = `cron "github.com/netresearch/go-cron"`
)

// The tests of cronlock pass where their cron is the fork: each of their files is compiled as it is, but for that import.
func TestCronlockOnTheFork(t *testing.T) {
	t.Parallel()
	tests, err := filepath.Glob(filepath.Join("..", "..", "..", "cronlock", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	dir := t.TempDir()
	for _, name := range tests {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), robfig) {
			continue
		}
		original, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		forked := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(forked, []byte(strings.ReplaceAll(string(text), robfig, fork)), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[original] = forked
	}
	if len(overlay.Replace) < 10 {
		t.Fatalf("%d tests of cronlock have a cron: the check looks in the wrong place", len(overlay.Replace))
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", file, "github.com/holdfast-go/holdfast/cronlock")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A wrapper's constructor runs with the cron's mutex held, whichever method it was called by.
func TestJobMadeInAConstructorIsRefused(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // which nothing here asks
	defer rdb.Close()
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	for name, add := range map[string]func(*cron.Cron){
		"AddFunc":     func(c *cron.Cron) { _, _ = c.AddFunc("@hourly", func() {}) },
		"AddOnceFunc": func(c *cron.Cron) { _, _ = c.AddOnceFunc("@hourly", func() {}) },
		"ScheduleJob": func(c *cron.Cron) { _, _ = c.ScheduleJob(cron.Every(time.Hour), cron.FuncJob(func() {})) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var g *cronlock.Guard
			said := make(chan error, 1)
			c := cron.New(cron.WithChain(func(inner cron.Job) cron.Job {
				if _, ours := inner.(cron.FuncJob); ours {
					_, err := g.Wrap("job", inner)
					said <- err
				}
				return inner
			}))
			g = cronlock.New(l, c)
			if _, err := g.AddFunc("@hourly", "job", func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
			go add(c)
			select {
			case err := <-said:
				if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "wrapper's constructor") {
					t.Errorf("got %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the constructor waits for the mutex that is held around it")
			}
		})
	}
}
