package cronlock

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/adapter/ticks"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
	"github.com/robfig/cron/v3"
)

// Cron is the *cron.Cron of robfig/cron, or of a fork with its methods, such as netresearch/go-cron. [New] also asks for AddJob,
// Schedule, Entry, Entries and Remove. It finds them by name, since a fork has types of its own for jobs and entries.
type Cron interface {
	Location() *time.Location
	Stop() context.Context
}

// host is a Cron with its other methods.
type host struct {
	Cron
	addJob, schedule, entry, entries, remove reflect.Value
	job                                      int // the field of an entry
}

// hosted records it as a mistake if c is nil or not like robfig's.
func hosted(c Cron, m *wiring.Mistakes) (h host) {
	if isNil(c) {
		m.Refuse("no cron")
		return h
	}
	v := reflect.ValueOf(c)
	// By constant names, as the linker keeps all methods of all types where it cannot know them.
	h = host{Cron: c, addJob: v.MethodByName("AddJob"), schedule: v.MethodByName("Schedule"), entry: v.MethodByName("Entry"),
		entries: v.MethodByName("Entries"), remove: v.MethodByName("Remove")}
	if !h.addJob.IsValid() || !h.schedule.IsValid() || !h.entry.IsValid() || !h.entries.IsValid() || !h.remove.IsValid() {
		m.Refuse("%T lacks a method of robfig's *cron.Cron: AddJob, Schedule, Entry, Entries or Remove", c)
		return h
	}
	if f, ok := h.entry.Type().Out(0).FieldByName("Job"); ok {
		h.job = f.Index[0]
	}
	return h
}

// add calls AddJob, and has an "@every" counted from 1970.
func (h host) add(spec string, j cron.Job) (cron.EntryID, error) {
	if strings.HasPrefix(strings.TrimPrefix(spec, "CRON_"), "TZ=") && !strings.Contains(spec, " ") {
		return 0, fmt.Errorf("a time zone without a spec: %q", spec) // at which robfig's parser panics
	}
	added := h.addJob.Call([]reflect.Value{reflect.ValueOf(spec), reflect.ValueOf(j)})
	if err, _ := added[1].Interface().(error); err != nil {
		return 0, err
	}
	id := added[:1]
	if every := ticks.Delay(field[cron.Schedule](h.entry.Call(id)[0], "Schedule")); every != 0 {
		h.remove.Call(id)
		id = h.schedule.Call([]reflect.Value{reflect.ValueOf(ticks.Every(every)), reflect.ValueOf(j)})
	}
	return cron.EntryID(id[0].Convert(reflect.TypeFor[int]()).Int()), nil
}

// jobs returns the jobs of this package that are in the cron, each with its entry.
func (h host) jobs() iter.Seq2[*job, reflect.Value] {
	return func(yield func(*job, reflect.Value) bool) {
		all := h.entries.Call(nil)[0]
		for i := range all.Len() {
			e := all.Index(i)
			if j, ok := e.Field(h.job).Interface().(*job); ok && !yield(j, e) {
				return
			}
		}
	}
}

// field returns what an entry has there.
func field[T any](entry reflect.Value, name string) T {
	return entry.FieldByName(name).Interface().(T)
}
