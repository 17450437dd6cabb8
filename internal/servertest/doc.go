// Package servertest gives tests the servers they talk to and the means to
// break the way there.
//
// [Redis], [Postgres] and [MariaDB] start throwaway server processes on the
// loopback interface and stop them with the test. [Proxy] stands between a
// client and any of them and cuts, delays or resets its connections. [StartChild]
// starts the test binary once more, to be stopped and killed. A [Clock] is the
// wall clock of a Redis server, to be set forward and back.
//
// [NewBubble] is the same for virtual time: a Redis server inside the process,
// reached through connections that live in a testing/synctest bubble, so that
// leases of minutes expire in milliseconds and no socket is involved.
//
//	synctest.Test(t, func(t *testing.T) {
//		b := servertest.NewBubble(t)
//		rdb := b.Client()
//		b.Link(rdb).OnCommand(func(args []string) servertest.Verdict {
//			return servertest.LoseReply
//		})
//		…
//	})
//
// # Missing servers
//
// A test that needs a server program which is not installed is skipped. With
// HOLDFAST_REQUIRE_SERVERS=1 in the environment it fails instead, so that a
// continuous integration run cannot pass by testing nothing.
package servertest

import _ "github.com/holdfast-go/holdfast/internal/servertest/testlimit" // for all tests that use this package
