package asynqlock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// Part takes from a task what tells one lock of a resource from the others: usually one string, none of them empty.
// Any function of this form will do; it runs before the lock is taken.
//
// Its error is the outcome of the task, as that of a handler would be: asynq tries again, unless it wraps
// [asynq.SkipRetry] (archived) or [asynq.RevokeTask] (dropped).
type Part func(t *asynq.Task) ([]string, error)

// Field is the value of a field of the payload, a JSON object, at its top level: a string that is not empty, or a number,
// which is taken as it is written. So 42 and "42" are the same, and 42 and 42.0 are not. Of several fields of one name the
// last counts. A field whose name differs in case alone is refused: encoding/json stores it in the same field of a struct,
// so that the handler could find another value than the lock was named by.
//
// A payload that is no JSON object, has no such value there, or has such another field, will not get better: the task is
// archived at once, with an error that matches [holdfast.ErrInvalid] and [asynq.SkipRetry].
//
// Without a name Field returns nil, which [New] refuses.
func Field(name string) Part {
	if name == "" {
		return nil
	}
	return func(t *asynq.Task) ([]string, error) {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(t.Payload(), &fields); err != nil {
			return nil, &keyError{fmt.Sprintf("the payload of %q is no JSON object: %v", t.Type(), err)}
		}
		for other := range fields {
			if other != name && strings.EqualFold(other, name) {
				return nil, &keyError{fmt.Sprintf("the payload of %q has a field %.100q, want %q alone", t.Type(), other, name)}
			}
		}
		raw, ok := fields[name]
		if !ok {
			return nil, &keyError{fmt.Sprintf("the payload of %q has no field %q", t.Type(), name)}
		}
		if c := raw[0]; c == '-' || '0' <= c && c <= '9' {
			return []string{string(raw)}, nil
		}
		var s string
		if err := json.Unmarshal(raw, &s); err != nil || s == "" || bytes.Equal(raw, []byte("null")) {
			return nil, &keyError{fmt.Sprintf("field %q in the payload of %q is neither a number nor a string that says something: %.40s", name, t.Type(), raw)}
		}
		return []string{s}, nil
	}
}

// Parts is all of parts, in their order: Parts(Field("tenant"), Field("account")) makes holdfast.Key(resource, tenant,
// account). Without a part, or with a nil one, Parts returns nil, which [New] refuses.
func Parts(parts ...Part) Part {
	if len(parts) == 0 {
		return nil
	}
	for _, p := range parts {
		if p == nil {
			return nil
		}
	}
	return func(t *asynq.Task) ([]string, error) {
		var all []string
		for _, p := range parts {
			some, err := p(t)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
}

// target is what a lock is of: the resource, and the part that tells one of it from the others.
type target struct {
	resource string
	part     Part
}

func (g target) judge(m *mistakes, where string) {
	if g.resource == "" {
		m.refuse("%sno resource", where)
	}
	if g.part == nil {
		m.refuse("%sno part: Field wants a name, Parts at least one part, and none of them nil", where)
	}
}

// keys are those of a task's locks, each once.
func (g *Guard) keys(t *asynq.Task) (keys []string, err error) {
	for _, target := range append([]target{g.target}, g.also...) {
		key, err := target.key(t)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// key is the lock's key for this task.
func (g target) key(t *asynq.Task) (string, error) {
	parts, err := g.part(t)
	if err != nil {
		return "", err
	}
	if len(parts) == 0 {
		return "", &keyError{fmt.Sprintf("nothing names the %s of task %q", g.resource, t.Type())}
	}
	for _, p := range parts {
		if p == "" {
			// A key without it would be one lock for all such tasks.
			return "", &keyError{fmt.Sprintf("an empty string names the %s of task %q", g.resource, t.Type())}
		}
	}
	return holdfast.Key(append([]string{g.resource}, parts...)...), nil
}

// keyError is a task that names nothing to lock.
type keyError struct{ reason string }

func (e *keyError) Error() string { return "asynqlock: " + e.reason }

func (e *keyError) Is(target error) bool {
	return target == holdfast.ErrInvalid || target == asynq.SkipRetry
}
