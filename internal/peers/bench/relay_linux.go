package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// The relay is one thread with an epoll and a timerfd. The timers of Go are late by up to 1 ms, four times as long as
// what they are to wait for, and a goroutine for each direction of each connection would take turns with the others.

// lateRelay has the connections of a relay.
type lateRelay struct {
	late                   time.Duration
	upstream               syscall.SockaddrInet4
	epoll, timer, listener int
	armed                  bool
	ends                   map[int]*end // by file descriptor
	way                    []parcel     // in the order of their times, as all are as late
	free                   [][]byte
}

// end is one end of a connection.
type end struct {
	fd     int
	other  *end
	rest   []byte // that it did not take yet
	closed bool
}

// parcel is what is on its way: bytes, or without any the end of the connection.
type parcel struct {
	to   *end
	data []byte
	due  time.Time
}

const parcelBytes = 16 << 10

func listenLate(upstream string, late time.Duration) (addr string, serve func() error, err error) {
	server, err := net.ResolveTCPAddr("tcp4", upstream)
	if err != nil {
		return "", nil, err
	}
	r := &lateRelay{late: late, ends: map[int]*end{}}
	r.upstream.Port = server.Port
	copy(r.upstream.Addr[:], server.IP.To4())
	if r.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return "", nil, fmt.Errorf("epoll: %w", err)
	}
	const monotonic, nonblock = 1, syscall.O_NONBLOCK | syscall.O_CLOEXEC
	timer, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, monotonic, nonblock, 0)
	if errno != 0 {
		return "", nil, fmt.Errorf("timerfd: %w", errno)
	}
	r.timer = int(timer)
	if r.listener, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0); err != nil {
		return "", nil, err
	}
	err = errors.Join(syscall.Bind(r.listener, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		syscall.Listen(r.listener, 1024), r.watch(r.listener), r.watch(r.timer))
	if err != nil {
		return "", nil, err
	}
	own, err := syscall.Getsockname(r.listener)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", own.(*syscall.SockaddrInet4).Port), r.serve, nil
}

func (r *lateRelay) watch(fd int) error {
	return syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)})
}

func (r *lateRelay) serve() error {
	runtime.LockOSThread()
	events := make([]syscall.EpollEvent, 256)
	for {
		n, err := syscall.EpollWait(r.epoll, events, -1)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			switch fd := int(e.Fd); fd {
			case r.listener:
				r.accept()
			case r.timer:
				var expirations [8]byte
				_, _ = syscall.Read(r.timer, expirations[:])
				r.armed = false
			default:
				if end := r.ends[fd]; end != nil {
					r.attend(end, e.Events)
				}
			}
		}
		if err := r.deliver(); err != nil {
			return err
		}
	}
}

func (r *lateRelay) accept() {
	client, _, err := syscall.Accept4(r.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if err != nil {
		return // it went away
	}
	server, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(syscall.Connect(server, &r.upstream), syscall.SetNonblock(server, true))
	}
	if err != nil {
		_, _ = syscall.Close(client), syscall.Close(server)
		return
	}
	a, b := &end{fd: client}, &end{fd: server}
	a.other, b.other = b, a
	for _, e := range []*end{a, b} {
		_ = syscall.SetsockoptInt(e.fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		r.ends[e.fd] = e
		if r.watch(e.fd) != nil {
			r.close(e)
			return
		}
	}
}

// attend reads what e has sent, and gives it what it did not take before.
func (r *lateRelay) attend(e *end, events uint32) {
	if events&syscall.EPOLLOUT != 0 {
		rest := e.rest
		e.rest = nil
		r.give(e, rest)
		if !e.closed && len(e.rest) == 0 {
			r.await(e, syscall.EPOLLIN)
		}
	}
	if events&^syscall.EPOLLOUT == 0 || e.closed {
		return
	}
	var data []byte
	if k := len(r.free) - 1; k >= 0 {
		data, r.free = r.free[k], r.free[:k]
	} else {
		data = make([]byte, parcelBytes)
	}
	n, err := syscall.Read(e.fd, data)
	switch {
	case n > 0:
	case err == syscall.EAGAIN || err == syscall.EINTR:
		return
	default: // its end, which follows what it has sent
		n = 0
		_ = syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_DEL, e.fd, nil)
	}
	r.way = append(r.way, parcel{e.other, data[:n], time.Now().Add(r.late)})
}

// deliver hands over what is due, and sets the timer for the next.
func (r *lateRelay) deliver() error {
	k := 0
	for now := time.Now(); k < len(r.way) && !r.way[k].due.After(now); k++ {
		p := r.way[k]
		switch {
		case p.to.closed:
		case len(p.data) == 0:
			r.close(p.to)
		default:
			r.give(p.to, p.data)
		}
		r.free = append(r.free, p.data[:cap(p.data)])
	}
	r.way = r.way[:copy(r.way, r.way[k:])]
	if len(r.way) == 0 || r.armed && k == 0 {
		return nil
	}
	r.armed = true
	next := [2]syscall.Timespec{1: syscall.NsecToTimespec(max(1, int64(time.Until(r.way[0].due))))}
	if _, _, errno := syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(r.timer), 0, uintptr(unsafe.Pointer(&next)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("timerfd: %w", errno)
	}
	return nil
}

// give writes to e, and keeps what e does not take now.
func (r *lateRelay) give(e *end, data []byte) {
	if len(e.rest) > 0 {
		e.rest = append(e.rest, data...)
		return
	}
	n, err := syscall.Write(e.fd, data)
	if err != nil && err != syscall.EAGAIN && err != syscall.EINTR {
		r.close(e)
		return
	}
	if n = max(n, 0); n < len(data) {
		e.rest = append([]byte(nil), data[n:]...)
		r.await(e, syscall.EPOLLIN|syscall.EPOLLOUT)
	}
}

func (r *lateRelay) await(e *end, events uint32) {
	_ = syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_MOD, e.fd, &syscall.EpollEvent{Events: events, Fd: int32(e.fd)})
}

// close closes both ends.
func (r *lateRelay) close(e *end) {
	for _, e := range []*end{e, e.other} {
		if !e.closed {
			e.closed = true
			delete(r.ends, e.fd)
			_ = syscall.Close(e.fd)
		}
	}
}
