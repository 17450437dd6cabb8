package throwaway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Find returns the first program found: by name in PATH, or in a directory
// that matches one of the patterns, the last in the alphabet first, which
// prefers the highest version.
func Find(names []string, patterns ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
		for _, pattern := range patterns {
			dirs, _ := filepath.Glob(pattern)
			for i := len(dirs) - 1; i >= 0; i-- {
				if path, err := exec.LookPath(filepath.Join(dirs[i], name)); err == nil {
					return path, nil
				}
			}
		}
	}
	return "", fmt.Errorf("no %v in PATH", names)
}

var errNoPort = errors.New("no free port on the loopback interface")

// freePort returns a port that was free a moment ago. It stays below the range
// from which the kernel takes the ports of outgoing connections, so that only
// another server can snatch it away, and low enough for a Redis cluster bus,
// which sits 10000 above its server's port.
func freePort() (int, error) {
	for range 100 {
		port := 10000 + rand.IntN(12000)
		if isFree(port) && isFree(port+10000) {
			return port, nil
		}
	}
	return 0, errNoPort
}

// OnFreePort calls start with free ports until one of them is still free when
// the server takes it.
func OnFreePort(start func(port int) error) error {
	var err error
	for range 5 {
		var port int
		if port, err = freePort(); err != nil {
			return err
		}
		if err = start(port); err == nil || !strings.Contains(err.Error(), "in use") {
			return err
		}
	}
	return err
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// Accepts returns nil once something listens on port.
func Accepts(port int) error {
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}
