package main

import "github.com/holdfast-go/holdfast/internal/servertest"

// server is a redis-server on the loopback interface that keeps nothing.
type server struct {
	addr    string
	program servertest.Program
	redis   *servertest.Server
}

func startServer() (*server, error) {
	s := &server{}
	if err := s.program.Do(func() { s.redis = servertest.Redis(&s.program) }); err != nil {
		s.Close()
		return nil, err
	}
	s.addr = s.redis.Addr()
	return s, nil
}

func (s *server) Close() { s.program.End() }

func (s *server) Pause() error { return s.program.Do(s.redis.Pause) }

func (s *server) Resume() error { return s.program.Do(s.redis.Resume) }
