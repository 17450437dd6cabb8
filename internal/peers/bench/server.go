package main

import (
	"context"

	"github.com/holdfast-go/holdfast/internal/servertest/throwaway"
)

// server is a redis-server on the loopback interface that keeps nothing.
type server struct {
	addr string
	*throwaway.Redis
}

// startServer starts one that ends with ctx or with Close.
func startServer(ctx context.Context) (*server, error) {
	s, err := throwaway.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	return &server{s.Addr(), s}, nil
}
