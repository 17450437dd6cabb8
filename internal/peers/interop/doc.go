// Package interop tests that holdfast and other programs exclude each other on one key: a plain
// SET key value NX PX ttl, github.com/bsm/redislock and github.com/go-redsync/redsync. Each test runs on
// miniredis in virtual time and on a real server.
//
// A library that cannot be downloaded is left out with its build tag, without_redislock or without_redsync.
//
// The module requires the latest go-redis and miniredis, where the root module requires the oldest that work.
// What the root module tests can be run against these versions from here:
//
//	go test . github.com/holdfast-go/holdfast/core
package interop
