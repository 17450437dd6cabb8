package asynqlock

import (
	"errors"
	"testing"
)

// Whatever Redis has, reading it ends in an error or in what the message says, also where a later version of asynq has
// fields of other kinds.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("\x0a\x03pay\x1a\x01a\x28\x19\x3a\x03err\x48\x07\x7a\x06\x0a\x01k\x12\x01v"))
	f.Add([]byte("\x09\x01\x02\x03\x04\x05\x06\x07\x08\x0d\x01\x02\x03\x04")) // fixed, of a later version
	f.Add([]byte("\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte{0x0b})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, _, err := readMessage(raw); err != nil && !errors.Is(err, errMessage) {
			t.Errorf("got %v", err)
		}
		lastErr, deadline, err := readMessage(append([]byte("\x09\x01\x02\x03\x04\x05\x06\x07\x08\x0a\x03pay\x48\x07\x3a\x03err"), raw...))
		if after, at, alone := readMessage(raw); alone == nil && (err != nil || lastErr != after && lastErr != "err" || deadline != at && deadline != 7) {
			t.Errorf("%q: got %q, %d, %v", raw, lastErr, deadline, err)
		}
	})
}
