package servertest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// upSince is how long a new server has been up, so that only tests about
// restarts see a young one.
const upSince = 24 * time.Hour

// node is what makes a Bubble one server among several: which run of it this
// is, and whether it runs at all. Bubble.mu guards it.
type node struct {
	server *server.Server // the same from the beginning to the end

	start  time.Time // by the server's clock
	runID  string
	hidden bool
	hook   server.Hook
	paused chan struct{} // nil while it runs, closed when resumed
	down   bool
}

// begin makes this a new run of the server, up for d. mu must be held.
func (b *Bubble) begin(d time.Duration) {
	var id [20]byte
	_, _ = rand.Read(id[:]) // never fails
	b.runID = hex.EncodeToString(id[:])
	b.start = b.now().Add(-d)
}

// now is the time by the server's clock. mu must be held.
func (b *Bubble) now() time.Time {
	if b.skew == nil {
		return time.Now()
	}
	return time.Now().Add(*b.skew)
}

// Uptime makes the server one that has been up for d, by its clock of now. A
// step of that clock, as by Skew, is a step of the uptime, as on a real server.
func (b *Bubble) Uptime(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start = b.now().Add(-d)
}

// RunID returns the run_id in INFO, another one after each restart.
func (b *Bubble) RunID() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.runID
}

// HideInfo makes INFO an error, as for a user whose ACL lacks it. In a script,
// real servers word that error differently from one version to the next, and
// not always with NOPERM.
func (b *Bubble) HideInfo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hidden = true
}

// Hook has fn see each command before the server does, also those that scripts
// call; nil ends that. Where fn returns true it has answered. A script holds
// the lock of Redis, so that fn must not use Redis on what scripts call.
//
// It is for tests what SetPreHook of Redis.Server() would be, which is taken.
func (b *Bubble) Hook(fn server.Hook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = fn
}

// before runs before each command. It has to: miniredis lets nobody replace
// its INFO, which knows no section "server", but asks here for scripts too.
// Within MULTI it answers at once, which miniredis gives no means to avoid.
func (b *Bubble) before(c *server.Peer, cmd string, args ...string) bool {
	b.mu.Lock()
	hook, hidden := b.hook, b.hidden
	b.mu.Unlock()
	switch {
	case hook != nil && hook(c, cmd, args...):
		return true
	case cmd != "INFO":
		return false
	case hidden:
		c.WriteError("NOPERM this user has no permissions to run the 'info' command")
		return true
	}
	sections := slices.Clone(args)
	for i := range sections {
		sections[i] = strings.ToLower(sections[i])
	}
	all := len(sections) == 0 || slices.ContainsFunc(sections, func(s string) bool {
		return s == "default" || s == "all" || s == "everything"
	})
	if !all && !slices.Contains(sections, "server") {
		return false
	}
	text := b.serverSection()
	if all {
		text += fmt.Sprintf("\r\n# Clients\r\nconnected_clients:%d\r\n", b.server.ClientsLen()) +
			fmt.Sprintf("\r\n# Stats\r\ntotal_connections_received:%d\r\ntotal_commands_processed:%d\r\n",
				b.server.TotalConnections(), b.server.TotalCommands())
	}
	c.WriteBulk(text)
	return true
}

// serverSection is that of Redis 7.0, less what nobody asks for.
func (b *Bubble) serverSection() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	up := now.Unix() - b.start.Unix() // whole seconds each, so that it may be ahead by up to one
	lines := []string{
		"# Server",
		"redis_version:7.0.15",
		"redis_mode:standalone",
		"run_id:" + b.runID,
		"tcp_port:6379",
		fmt.Sprintf("server_time_usec:%d", now.UnixMicro()),
		fmt.Sprintf("uptime_in_seconds:%d", up),
		fmt.Sprintf("uptime_in_days:%d", up/(24*60*60)),
	}
	return strings.Join(lines, "\r\n") + "\r\n"
}

// Pause makes the server hang until Resume, for all links, also those still to
// come: nothing crosses in either direction, and dials wait. Heal of a link
// does not end it. The server's clock runs on, and keys expire.
func (b *Bubble) Pause() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused == nil && !b.closed { // a closed one would have dials wait for ever
		b.paused = make(chan struct{})
	}
}

// Resume ends Pause and lets through what it held back, except over links that
// are cut themselves.
func (b *Bubble) Resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused != nil {
		close(b.paused)
		b.paused = nil
	}
}

// halted returns a channel that is closed at Resume, nil while not paused.
func (b *Bubble) halted() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

// Down stops the server until Up: connections are reset and dials refused, for
// all links, also those still to come. Keys stay, as on a disk, and expire
// meanwhile; Restart before Up is a server that forgot them.
func (b *Bubble) Down() {
	b.mu.Lock()
	b.down = true
	b.mu.Unlock()
	for _, link := range b.Links() {
		link.Reset()
	}
}

// Up starts a server that is down. As with any process, that is a new run with
// an uptime of zero and no scripts.
func (b *Bubble) Up() {
	b.t.Helper()
	b.mu.Lock()
	down := b.down
	b.mu.Unlock()
	if !down {
		return
	}
	b.forgetScripts() // first, since a dial may come as soon as it is up
	b.mu.Lock()
	b.begin(0)
	b.down = false
	b.mu.Unlock()
}

// refusal is what a dial fails with while the server is down.
func (b *Bubble) refusal() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return syscall.ECONNREFUSED
	}
	return nil
}
