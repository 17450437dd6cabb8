package ticks

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/robfig/cron/v3"
)

// Replicas that have the same ticks have the same text about them, however they say it and wherever they run, and it has
// a size that can be kept and told.
func FuzzFingerprint(f *testing.F) {
	for i, spec := range []string{
		"* * * * *", "*/5 * * * *", "30 2 * * *", "@daily", "@yearly", "@weekly", "@every 5m", "@every 0s", "@every 1.9s", "@every 2562047h", "0 0 29 2 *", "0 0 31 2 *",
		"0 0 1,15 * mon-fri", "? ? ? ? ?", "15-45/10 3 * * 1", "\t0\t0 * * *\n", "59 23 31 12 *", "5,6,7 1 1 1 1", "0 24 * * *", "TZ=UTC 0 0 * * *",
	} {
		f.Add(spec, byte(i), byte(i+1))
		f.Add(spec, byte(i+3), byte(i))
	}
	f.Fuzz(func(t *testing.T, spec string, here, there byte) {
		if strings.Contains(spec, "TZ=") {
			return
		}
		schedule, err := cron.ParseStandard(spec)
		if s, is := schedule.(*cron.SpecSchedule); err != nil || is && s.Minute<<1 == 0 {
			return // which cron takes long to find out never comes
		}
		name := zones[int(here)%len(zones)]
		one, two := zone(t, name), zone(t, zones[int(there)%len(zones)])
		own := Fingerprint(schedule, one)
		again, _ := cron.ParseStandard("  " + strings.Join(strings.Fields(spec), "   "))
		if strings.HasPrefix(spec, "@") {
			again = schedule
		}
		if again == nil || Fingerprint(again, one) != own {
			t.Fatalf("%q: %q, with other spaces %v", spec, own, again)
		}
		for _, prefix := range []string{"TZ=", "CRON_TZ="} {
			named, err := cron.ParseStandard(prefix + name + " " + spec)
			if err != nil {
				t.Fatal(err)
			}
			if text := Fingerprint(named, two); text != own {
				t.Fatalf("%q in %s: %q, and where %s is the cron's zone %q", spec, name, own, two, text)
			}
		}
		if text := head(own); !utf8.ValidString(own) || len(own) > 500 || len(text) > len(own) || !strings.HasPrefix(own, text) {
			t.Fatalf("%q: %q, head %q", spec, own, text)
		}
		if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
			if longer := Fingerprint(cron.Every(every.Delay+time.Second), one); every.Delay < 1<<62 && longer == own {
				t.Fatalf("%q: one second more has the same text %q", spec, own)
			}
			return
		}
		// The first tick after the first moment is among them.
		first := schedule.Next(time.Date(2024, 2, 28, 23, 59, 30, 0, time.UTC).In(one))
		if !first.IsZero() && !strings.HasPrefix(own, "at "+first.UTC().Format("2006-01-02T15:04:05")) {
			t.Fatalf("%q: %q lacks %v", spec, own, first)
		}
	})
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia"}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Skip(err)
	}
	return l
}
