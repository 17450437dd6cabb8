package servertest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"
)

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

// onFreePort calls start with free ports until one of them is still free when
// the server takes it.
func onFreePort(start func(port int) error) error {
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

// accepts returns nil once something listens on port.
func accepts(port int) error {
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}
