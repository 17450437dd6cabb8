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

// A Part takes from a task the strings that tell its lock from the others of the resource: usually one string, and none of
// them empty. Any function of this form will do. It runs before the lock is taken.
//
// An error of a Part is the outcome of the task, like an error of a handler: asynq retries the task, unless the error wraps
// [asynq.SkipRetry] (archived) or [asynq.RevokeTask] (dropped).
type Part func(t *asynq.Task) ([]string, error)

// Field returns a Part that takes a top-level field of the payload, which must be a JSON object. The field is a string that
// is not empty, or a number. A number is taken as it is written, so 42 and "42" are the same, and 42 and 42.0 are not. If
// several fields have the same name, the last one counts. A payload with a field whose name differs only in case is refused:
// encoding/json stores both in one field of a struct, so the handler could find another value than the lock's.
//
// A task whose payload is not a JSON object, lacks such a value, or has such another field is archived at once, because a
// retry cannot help. Its error matches [holdfast.ErrInvalid] and [asynq.SkipRetry].
//
// If name is empty, Field returns nil, which [New] refuses.
func Field(name string) Part {
	if name == "" {
		return nil
	}
	return func(t *asynq.Task) ([]string, error) {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(t.Payload(), &fields); err != nil {
			return nil, &keyError{fmt.Sprintf("the payload of %q is not a JSON object: %v", t.Type(), err)}
		}
		for other := range fields {
			if other != name && strings.EqualFold(other, name) {
				return nil, &keyError{fmt.Sprintf("the payload of %q has a field %.100q; only %q is allowed", t.Type(), other, name)}
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

// Parts returns a Part that takes what all of parts take, in their order. Parts(Field("tenant"), Field("account")) makes the
// key holdfast.Key(resource, tenant, account). If parts is empty or one of them is nil, Parts returns nil, which [New]
// refuses.
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

// target is what a lock protects: the resource, and the part that tells one such resource from the others.
type target struct {
	resource string
	part     Part
}

func (g target) judge(m *mistakes, where string) {
	if g.resource == "" {
		m.refuse("%sno resource", where)
	}
	if g.part == nil {
		m.refuse("%sno part: Field needs a name, and Parts needs at least one part, none of them nil", where)
	}
}

// keys returns the keys of the task's locks, each once.
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

// key returns the lock's key for this task.
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

// keyError is the error of a task that has no key.
type keyError struct{ reason string }

func (e *keyError) Error() string { return "asynqlock: " + e.reason }

func (e *keyError) Is(target error) bool {
	return target == holdfast.ErrInvalid || target == asynq.SkipRetry
}
