package asynqlock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// Whatever a spec is, Register returns: it refuses and keeps nothing of it, or has ticks in whole seconds that are the same
// at whatever time between two of them it is asked for.
func FuzzSchedulerSpec(f *testing.F) {
	for _, spec := range []string{
		"*/5 * * * *", "30 2 * * *", "@daily", "@every 5m", "@every 0s", "@every -1h", "@every 1.9s", "@every 2562047h47m16s", "@every 9999999999h", "@every", "@every ",
		"CRON_TZ=America/New_York 0 12 * * *", "TZ=Europe/Berlin 30 2 * * *", "TZ=", "CRON_TZ=UTC", "TZ= * * * * *", "TZ=UTC  @daily", "CRON_TZ=Nowhere/Else @daily", "TZ=../../etc/passwd * * * * *",
		"0 0 31 2 *", "0 0 29 2 *", "", " ", "* * * *", "* * * * * *", "60 * * * *", "5-1 * * * *", "*/0 * * * *", "a b c d e", "0 0 1,15 * mon-fri", "? ? ? ? ?",
		"\t0\t0 * * *\n", "0  0  *  *  *", "1-2-3 * * * *", "*/9223372036854775807 * * * *", "-1 * * * *", "@", "@DAILY", "0 0 * jan sun", "0 0 * * 7", "\xff * * * *", "TZ=\x00 * * * * *",
	} {
		f.Add(spec, "report", int64(1_700_000_000), uint16(1000))
	}
	f.Add("@daily", "", int64(0), uint16(1))
	f.Add("@daily", "a\x00b", int64(0), uint16(1))
	f.Add("@daily", "x}", int64(951_782_400), uint16(999))
	f.Add("30 2 * * *", "report", int64(1_711_846_800), uint16(7))
	l, err := holdfast.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})) // which nothing here asks
	if err != nil {
		f.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		f.Skip(err)
	}
	f.Fuzz(func(t *testing.T, spec, name string, unix int64, part uint16) {
		s := NewScheduler(l, WithLocation(berlin))
		err := s.Register(spec, name, asynq.NewTask("pay", nil))
		if err != nil {
			if !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "asynqlock: ") {
				t.Fatalf("%q: got %v, want ErrInvalid", spec, err)
			}
			if len(s.cron.Entries())+len(s.entries) > 0 || !errors.Is(s.Unregister(name), holdfast.ErrInvalid) {
				t.Fatalf("%q was refused and has an entry", spec)
			}
			return
		}
		if err := s.Register(name, "@daily", asynq.NewTask("pay", nil)); !errors.Is(err, holdfast.ErrInvalid) || len(s.cron.Entries()) != 1 {
			t.Fatalf("a second %q: %v", name, err)
		}
		has := s.cron.Entries()[0]
		if e, ok := has.Job.(*entry); !ok || e.lateness <= 0 || e.lateness > defaultLateness {
			t.Fatalf("%q: %+v", spec, has.Job)
		}
		now := time.Unix(unix&(1<<32-1), int64(part)).In(berlin)
		for range 3 {
			tick := has.Schedule.Next(now)
			if tick.IsZero() {
				break
			}
			between := now.Add(time.Duration(float64(tick.Sub(now)) * float64(part) / (1 << 16)))
			if again := has.Schedule.Next(between); !tick.After(now) || tick.Nanosecond() != 0 || !again.Equal(tick) {
				t.Fatalf("%q: after %v comes %v, after %v %v", spec, now, tick, between, again)
			}
			now = tick
		}
		if err := s.Unregister(name); err != nil || len(s.cron.Entries()) > 0 {
			t.Fatalf("%q: %v", spec, err)
		}
	})
}

// A task's ID is read as that of a tick where a Scheduler can have written it.
func FuzzTick(f *testing.F) {
	for _, id := range []string{
		"invoices@1795271400", "a@b@5", "@5", "a@", "a@0", "a@-5", "a@+5", "a@05", "a@ 5", "a@5 ", "a@9223372036854775807", "a@9223372036854775808", "", "@",
		"8e03978e-40d5-43dd-bc93-6894a57f9324", "a@1_000", "a@0x5", "a@5.0", "\xff@5", "a@5\x00", "a\n@5",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		name, tick, ok := tickOf(id)
		if !ok && (name != "" || !tick.IsZero()) {
			t.Errorf("%q: got %q, %v beside false", id, name, tick)
		}
		if written := fmt.Sprintf("%s@%d", name, tick.Unix()); ok && (written != id || name == "" || tick.Unix() <= 0) {
			t.Errorf("%q: got %q, %v", id, name, tick)
		}
		// The other way round.
		if i := strings.LastIndexByte(id, '@'); !ok && i > 0 && len(id)-i-1 <= 18 && len(id) > i+1 && id[i+1] > '0' && strings.Trim(id[i+1:], "0123456789") == "" {
			t.Errorf("%q: not read", id)
		}
	})
}
