package core_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Some managed services let no script PUBLISH. A lock is granted to nobody that could not be told: it stays free, and the
// line as it is. From the second hand-over on waiters look by themselves, at the pace of polling, and each Locker says
// once why that is slower.
func TestServerThatLetsNoScriptPublish(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			refuse(b, "publish", "ERR This Redis command is not allowed from script")
			var told [4]reported
			var rs []*replica
			for i := range told {
				rdb := b.Client()
				var client redis.UniversalClient = rdb
				if cluster {
					client = opaque{rdb}
				}
				rs = append(rs, &replica{newLocker(t, client, core.WithTrace(told[i].trace())), rdb, b.Link(rdb)})
			}
			w := watchKey(t, b, "k")
			var last int64
			for round := range 5 {
				lock := got(t, call(background, rs[0], "k"))
				w.add(lock)
				var calls []<-chan result
				for _, r := range rs[1:] {
					calls = append(calls, call(background, r, "k"))
					time.Sleep(300 * time.Millisecond) // until each of them is in line
				}
				time.Sleep(5 * time.Second)
				release(t, lock)
				if round == 0 {
					if b.Redis.Exists("k") {
						t.Error("granted to a waiter that does not know")
					}
					if d := w.serve(calls...); d > 3*2*time.Second {
						t.Errorf("three got it after %v, want a look each", d)
					}
					continue
				}
				for i, c := range calls { // within ten minutes of the refusal
					lock, waited := w.get(c)
					if waited > 270*time.Millisecond {
						t.Errorf("round %d: waiter %d got it after %v", round, i, waited)
					}
					if lock.Token() <= last {
						t.Errorf("token %d after %d", lock.Token(), last)
					}
					last = lock.Token()
					release(t, lock)
				}
			}
			for i := range told {
				if n := told[i].count("PUBLISH"); i > 0 && n != 1 || len(told[i].all()) != n {
					t.Errorf("Locker %d reported: %v", i, told[i].all())
				}
			}
			w.end()
			refuse(b, "", "")
			// Allowed again: that is noticed.
			time.Sleep(11 * time.Minute)
			for range 3 {
				lock := got(t, call(background, rs[0], "k"))
				c := call(background, rs[1], "k")
				time.Sleep(time.Second)
				release(t, lock)
				release(t, got(t, c))
			}
			lock := got(t, call(background, rs[0], "k"))
			c := call(background, rs[1], "k")
			time.Sleep(time.Second)
			began := time.Now()
			release(t, lock)
			release(t, got(t, c))
			if d := time.Since(began); d > 0 {
				t.Errorf("%v to be told when scripts may publish again", d)
			}
			empty(t, b, rs...)
		})
	}
}
