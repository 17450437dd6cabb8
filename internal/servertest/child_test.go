package servertest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"time"
)

const echoEnv = "SERVERTEST_ECHO" // set in a child that says so and waits for its standard input to end: its status then

func TestMain(m *testing.M) {
	if status := os.Getenv(echoEnv); status != "" {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Println("over")
		if status == "hang" {
			time.Sleep(time.Hour)
		}
		code, _ := strconv.Atoi(status)
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// child starts one and waits until it runs. said is what it prints, and is
// closed at the end.
func child(t *testing.T, status string, fault error) (c *Child, said chan string) {
	t.Helper()
	said = make(chan string, 10)
	c, err := StartChild(echoEnv+"="+status, func(r io.Reader) error {
		defer close(said)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			said <- lines.Text()
		}
		return fault
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	if got := <-said; got != "ready" {
		t.Fatalf("the child says %q", got)
	}
	return c, said
}

func TestChildLeaves(t *testing.T) {
	c, said := child(t, "0", nil)
	if c.Gone() {
		t.Error("it has ended by itself")
	}
	if err := c.Leave(patience); err != nil || !c.Gone() {
		t.Errorf("got %v, gone %v", err, c.Gone())
	}
	if got := <-said; got != "over" {
		t.Errorf("it said %q, want all that it printed to be read", got)
	}
	c.Kill() // does nothing
}

func TestPausedChild(t *testing.T) {
	c, said := child(t, "0", nil)
	if err := c.Pause(); err != nil {
		t.Skip(err)
	}
	stat := fmt.Sprintf("/proc/%d/stat", c.p.Pid())
	if _, err := os.Stat(stat); err != nil {
		t.Skip("only Linux tells when it has stopped")
	}
	eventually(t, "the stop", func() bool {
		text, err := os.ReadFile(stat)
		return err == nil && bytes.Contains(text, []byte(") T "))
	})
	left := make(chan error)
	go func() { left <- c.Leave(patience) }()
	select {
	case err := <-left:
		t.Fatalf("a paused child left: %v", err)
	case got := <-said:
		t.Fatalf("a paused child said %q", got)
	case <-time.After(100 * time.Millisecond):
	}
	c.Resume()
	if err := <-left; err != nil {
		t.Error(err)
	}

	c, _ = child(t, "0", nil)
	_ = c.Pause()
	c.Kill()
	if !c.Gone() {
		t.Error("a paused child was not killed")
	}
}
