package asynqlock

import (
	"bytes"
	"errors"
	"testing"
)

// Whatever Redis has, reading it ends in an error or in fields that make it up; and a successor of it can be read again.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("\x0a\x03pay\x1a\x01a\x28\x19\x3a\x03err\x48\x07\x7a\x06\x0a\x01k\x12\x01v"))
	f.Add([]byte("\x09\x01\x02\x03\x04\x05\x06\x07\x08\x0d\x01\x02\x03\x04")) // fixed, of a later version
	f.Add([]byte("\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte{0x0b})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMessage(raw)
		if err != nil {
			if !errors.Is(err, errMessage) {
				t.Errorf("got %v", err)
			}
			return
		}
		var all []byte
		for _, field := range m {
			all = append(all, field.raw...)
		}
		if !bytes.Equal(all, raw) {
			t.Errorf("%q: the fields make up %q", raw, all)
		}
		once := m.successor("id", "origin", "failed")
		again, err := parseMessage(once)
		if err != nil || again.text(idField) != "id" || again.text(errorField) != "failed" || again.number(deadlineField) != m.number(deadlineField) {
			t.Errorf("%q: its successor is %q, %v", raw, once, err)
		}
		if twice := again.successor("id", "origin", "failed"); !bytes.Equal(once, twice) {
			t.Errorf("%q: a successor grows from %q to %q", raw, once, twice)
		}
	})
}
