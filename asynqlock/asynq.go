package asynqlock

import (
	"encoding/binary"
	"errors"
	"time"
)

// What asynq itself keeps in Redis is named in this file only: its keys, the fields of a task's hash, the states, and the
// fields of its protobuf message. It was read from asynq v0.26.0: internal/base/base.go, internal/rdb/rdb.go and
// internal/proto/asynq.proto. TestWhatAsynqWrites and TestInspectorListsEntries fail if another version differs.

// The hash tag of asynq's keys is the queue.
func queuePrefix(queue string) string { return "asynq:{" + queue + "}:" }

// taskPrefix with a task's ID is the key of the task's hash.
func taskPrefix(queue string) string  { return queuePrefix(queue) + "t:" }
func taskKey(queue, id string) string { return taskPrefix(queue) + id }

// pendingKey is a list. asynq takes tasks from its right end, and puts new ones at the left end.
func pendingKey(queue string) string { return queuePrefix(queue) + "pending" }

// These are sorted sets, by the Unix time in seconds when a task is due, and when it was archived.
func retryKey(queue string) string    { return queuePrefix(queue) + "retry" }
func archivedKey(queue string) string { return queuePrefix(queue) + "archived" }

// pausedKey exists while the queue is paused.
func pausedKey(queue string) string { return queuePrefix(queue) + "paused" }

// A task's message is a protobuf message with these numbers of fields.
const (
	errorField    = 7
	deadlineField = 9
)

// asynqNames begins each script that reads or changes a task of asynq. pending_since is in nanoseconds.
const asynqNames = `
local MSG, STATE, PENDING_SINCE = 'msg', 'state', 'pending_since'
local ACTIVE, PENDING, RETRY, ARCHIVED, COMPLETED = 'active', 'pending', 'retry', 'archived', 'completed'
`

var errMessage = errors.New("asynqlock: asynq's record of the task has an unknown format")

// readMessage returns a task's last error and its deadline, in Unix seconds, 0 if it has none.
func readMessage(raw []byte) (lastErr string, deadline int64, err error) {
	for len(raw) > 0 {
		tag, n := binary.Uvarint(raw)
		if n <= 0 {
			return "", 0, errMessage
		}
		raw = raw[n:]
		size, kind := uint64(0), tag&7
		switch kind {
		case 0, 2: // a number, or the length of a text
			v, n := binary.Uvarint(raw)
			if n <= 0 {
				return "", 0, errMessage
			}
			raw = raw[n:]
			if kind == 2 {
				size = v
			} else if tag>>3 == deadlineField {
				deadline = int64(v)
			}
		case 1:
			size = 8
		case 5:
			size = 4
		default:
			return "", 0, errMessage
		}
		if size > uint64(len(raw)) {
			return "", 0, errMessage
		}
		if kind == 2 && tag>>3 == errorField {
			lastErr = string(raw[:size])
		}
		raw = raw[size:]
	}
	return lastErr, deadline, nil
}

// asynq's Inspector, and so asynqmon, lists the entries that Schedulers keep in Redis. Each Scheduler has a list of them, and
// a sorted set has the keys of the lists by the Unix time in seconds at which they expire.
const schedulersKey = "asynq:schedulers"

func entriesKey(scheduler string) string { return schedulersKey + ":{" + scheduler + "}" }

// listed returns the entry as a protobuf message, a SchedulerEntry.
func (e *entry) listed(next, prev time.Time) []byte {
	raw := appendText(nil, 1, e.name)
	raw = appendText(raw, 2, e.spec)
	raw = appendText(raw, 3, e.task.Type())
	raw = appendText(raw, 4, string(e.task.Payload()))
	for _, o := range e.opts {
		raw = appendText(raw, 5, o.String())
	}
	return appendText(appendText(raw, 6, timestamp(next)), 7, timestamp(prev))
}

// timestamp returns a google.protobuf.Timestamp, in whole seconds as all ticks.
func timestamp(t time.Time) string {
	return string(binary.AppendUvarint([]byte{1 << 3}, uint64(t.Unix())))
}

func appendText(raw []byte, number uint64, s string) []byte {
	raw = binary.AppendUvarint(raw, number<<3|2)
	raw = binary.AppendUvarint(raw, uint64(len(s)))
	return append(raw, s...)
}
