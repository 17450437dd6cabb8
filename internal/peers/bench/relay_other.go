//go:build !linux

package main

import (
	"net"
	"time"
)

// listenLate is less exact than that for Linux, as goroutines sleep longer than they are asked to.
func listenLate(upstream string, late time.Duration) (addr string, serve func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), func() error {
		for {
			client, err := l.Accept()
			if err != nil {
				return err
			}
			go func() {
				server, err := net.Dial("tcp", upstream)
				if err != nil {
					_ = client.Close()
					return
				}
				go passLate(client, server, late)
				go passLate(server, client, late)
			}()
		}
	}, nil
}

// delayed is some bytes and when they are due.
type delayed struct {
	data []byte
	due  time.Time
}

func passLate(from, to net.Conn, late time.Duration) {
	way := make(chan delayed, 1024)
	go func() {
		defer close(way)
		for {
			chunk := make([]byte, 4096)
			n, err := from.Read(chunk)
			if n > 0 {
				way <- delayed{chunk[:n], time.Now().Add(late)}
			}
			if err != nil {
				return
			}
		}
	}()
	for d := range way {
		time.Sleep(time.Until(d.due))
		if _, err := to.Write(d.data); err != nil {
			_ = from.Close() // then the reader ends, and what it still has is dropped
		}
	}
	_ = to.Close()
}
