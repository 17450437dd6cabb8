package asynqlock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/jsonfield"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// A Part takes from a task the strings that name one lock of a resource, usually one. Any function of this type will do. A
// task whose Part returns no string, or an empty one, has no key. An error of a Part is that of the task: asynq retries it,
// unless the error wraps [asynq.SkipRetry] or [asynq.RevokeTask]. [New] refuses a nil Part.
type Part func(t *asynq.Task) ([]string, error)

// Field takes a field of the payload, which must be a JSON object: Field("data", "account") takes "account" of the object
// in its field "data". The field is a string that is not empty, or a number, taken as it is written (-0 as 0): 42 and
// "42" are the same, 42 and 42.0 are not. Each name must occur once, in whatever case: encoding/json could give the
// handler another value than the lock's. A task without such a field has no key.
func Field(path ...string) Part {
	if len(path) == 0 || slices.Contains(path, "") {
		return nil
	}
	path = slices.Clone(path)
	return func(t *asynq.Task) ([]string, error) {
		value, err := jsonfield.Find(t.Payload(), "payload", path)
		if err != nil {
			key := &keyError{fmt.Sprintf("task %q has %v", t.Type(), err)}
			if errors.Is(err, jsonfield.ErrAbsent) {
				return nil, wiring.Absent(key)
			}
			return nil, key
		}
		return []string{value}, nil
	}
}

// Parts takes what all of parts take, in their order: Parts(Field("tenant"), Field("account")) makes
// holdfast.Key(resource, tenant, account).
func Parts(parts ...Part) Part { return wiring.Parts(parts) }

// target names what is locked.
type target = wiring.Target[*asynq.Task]

// keyError is the error of a task that has no key.
type keyError struct{ reason string }

func unnamed(t *asynq.Task) func(resource, what string) error {
	return func(resource, what string) error {
		return &keyError{fmt.Sprintf("%s names the %s of task %q", what, resource, t.Type())}
	}
}

func (e *keyError) Error() string { return "asynqlock: " + e.reason }

func (e *keyError) Is(target error) bool {
	return target == holdfast.ErrInvalid || target == asynq.SkipRetry
}
