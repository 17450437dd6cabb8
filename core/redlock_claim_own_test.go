package core_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// The first attempt of a claim raised the mark on three of five masters and was not heard of, and what takes it back is
// on its way. The next attempt finds it there: that is nobody else's.
func TestRedLockClaimIsNotInItsOwnWay(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		if won, err := v.Claim(background, "job", time.Now().Add(-time.Second)); !won { // and the scripts are known
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		later := make(chan struct{})
		time.AfterFunc(5*time.Second, func() { close(later) })
		for _, link := range v.links[:3] {
			first := true
			link.OnCommand(func(args []string) servertest.Verdict {
				switch name := core.ScriptName(args); {
				case name == "withdraw":
					return servertest.HoldRequest(later)
				case name == "tick" && first:
					first = false
					return servertest.LoseReply
				}
				return servertest.Pass
			})
		}
		if won, err := v.Claim(background, "job", time.Now()); !won && err == nil {
			t.Error("somebody else has the tick, it says, and nobody else has claimed it")
		}
		<-later
		time.Sleep(10 * time.Second)
		shutdown(t, v.Locker)
	})
}
