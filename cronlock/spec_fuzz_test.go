package cronlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

var specs = []string{
	"* * * * *", "*/5 * * * *", "30 2 * * *", "@daily", "@yearly", "@every 5m", "@every 0s", "@every -1h", "@every 1.9s", "@every 2562047h47m16s", "@every 9999999999h", "@every", "@every ",
	"CRON_TZ=America/New_York 0 12 * * *", "TZ=Europe/Berlin 30 2 * * *", "TZ=", "CRON_TZ=UTC", "CRON_TZ=", "TZ= * * * * *", "TZ=UTC  @daily", "CRON_TZ=Nowhere/Else @daily", "TZ=../../etc/passwd * * * * *",
	"0 0 31 2 *", "0 0 29 2 *", "", " ", "* * * *", "*/20 * * * * *", "60 * * * *", "5-1 * * * *", "*/0 * * * *", "a b c d e", "0 0 1,15 * mon-fri", "? ? ? ? ?", ", * * * *",
	"\t0\t0 * * *\n", "0  0  *  *  *", "1-2-3 * * * *", "*/9223372036854775807 * * * *", "-1 * * * *", "@", "@DAILY", "0 0 * jan sun", "0 0 * * 7", "\xff * * * *", "TZ=\x00 * * * * *", "TZ=UTC\t* * * * *", "CRON_TZ=Asia/Kathmandu 7 7 7 * * *",
}

// parsed is what cron makes of a spec; ok is false also where it panics.
func parsed(spec string, standard bool) (s cron.Schedule, ok bool) {
	defer func() {
		if recover() != nil {
			s, ok = nil, false
		}
	}()
	read := parser.Parse
	if standard {
		read = cron.ParseStandard
	}
	s, err := read(spec)
	return s, err == nil
}

// AddFunc takes what cron takes. Of what it refuses nothing stays: no entry, no job to run, and the name is free.
func FuzzAddFunc(f *testing.F) {
	for _, spec := range specs {
		f.Add(spec, "job", true)
		f.Add(spec, "job", false)
	}
	for _, name := range []string{"", "a\x00b", "{}x", "a}b", "a:~b", "{shop}job", "\xff", strings.Repeat("x", 600)} {
		f.Add("@daily", name, true)
	}
	l, err := holdfast.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})) // which nothing here asks
	if err != nil {
		f.Fatal(err)
	}
	nothing := func(context.Context) error { return nil }
	f.Fuzz(func(t *testing.T, spec, name string, standard bool) {
		c := cron.New(cron.WithParser(parser))
		if standard {
			c = cron.New()
		}
		g := cronlock.New(l, c)
		_, ok := parsed(spec, standard)
		id, err := g.AddFunc(spec, name, nothing)
		if err == nil {
			if entries := c.Entries(); !ok || len(entries) != 1 || entries[0].ID != cron.EntryID(id) {
				t.Fatalf("%q: added, entries %v", spec, entries)
			}
			if _, err := g.AddFunc("@daily", name, nothing); !errors.Is(err, holdfast.ErrInvalid) || len(c.Entries()) != 1 {
				t.Fatalf("%q: a second job %q: %v", spec, name, err)
			}
			return
		}
		if !strings.HasPrefix(err.Error(), "cronlock: ") || len(c.Entries()) > 0 {
			t.Fatalf("%q: got %v, entries %v", spec, err, c.Entries())
		}
		if now := g.RunNow(context.Background(), name); !errors.Is(now, holdfast.ErrInvalid) || !strings.Contains(now.Error(), "there is no job") {
			t.Fatalf("%q was refused, and can be run: %v", spec, now)
		}
		_, again := g.AddFunc("@daily", name, nothing)
		if named := again == nil; named && ok || !named && !errors.Is(again, holdfast.ErrInvalid) {
			t.Fatalf("%q, parsed %v, was refused for %q: %v; @daily: %v", spec, ok, name, err, again)
		}
	})
}

// A job runs at the ticks that its spec has by cron, or for "@every" by the Guard, whenever it is added.
func FuzzTicks(f *testing.F) {
	for i, spec := range specs {
		f.Add(spec, uint32(i*12_345_678))
	}
	f.Fuzz(func(t *testing.T, spec string, begin uint32) {
		schedule, ok := parsed(spec, false)
		if s, is := schedule.(*cron.SpecSchedule); !ok || is && (s.Second<<1 == 0 || s.Minute<<1 == 0) {
			return // without a second or minute, cron looks at each of five years
		}
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			pass(time.Duration(begin) * time.Millisecond)
			j := newJournal()
			r := newReplica(t, b, j)
			var want []time.Time
			last := time.Now().UTC()
			for range 3 {
				next := schedule.Next(last)
				if every, is := schedule.(cron.ConstantDelaySchedule); is { // which a Guard counts from 1970
					period := int64(every.Delay / time.Second)
					next = time.Unix(last.Unix()-last.Unix()%period+period, 0)
				}
				if next.IsZero() || time.Until(next) > 3*366*24*time.Hour {
					break
				}
				want, last = append(want, next.UTC()), next
			}
			r.add(t, spec, "job", time.Millisecond)
			if len(want) < 3 {
				pass(24 * time.Hour)
				want = slices.DeleteFunc(want, func(tick time.Time) bool { return tick.After(time.Now()) })
			} else {
				pass(time.Until(last) + 10*time.Millisecond)
			}
			if got := j.ticks(); !slices.EqualFunc(got, want, time.Time.Equal) || j.total() != len(want) || len(j.of("ran")) != len(want) {
				t.Errorf("%q at %v: ran at %v, want %v; %v", spec, time.Now(), got, want, j)
			}
		})
	})
}
