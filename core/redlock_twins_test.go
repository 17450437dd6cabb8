package core_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// Two clients of one server are found out also where their first answers come together.
func TestRedLockTwinsThatAnswerTogether(t *testing.T) {
	clients := make([]*redis.Client, 3)
	for i := range clients {
		clients[i] = redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", i+1)})
		defer clients[i].Close()
	}
	for range 3000 {
		l, err := core.NewRedLock(clients)
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, core.MeetTwins(l), core.ErrInvalid)
		if t.Failed() {
			return
		}
	}
}
