package asynqlock

import (
	"encoding/binary"
	"errors"
)

// asynq keeps a task as a hash, whose field "msg" is a protobuf message. These are the numbers of the fields that are read
// or replaced in it (asynq.proto). Everything else in it stays as it is, even what a later version of asynq adds.
const (
	idField       = 3
	errorField    = 7
	deadlineField = 9
	headersField  = 15
)

var errMessage = errors.New("asynqlock: asynq's record of the task has an unknown format")

// message is the fields of a protobuf message, in order.
type message []field

type field struct {
	number uint64
	raw    []byte // the whole field
	bytes  []byte // the content of a string or a message
	value  uint64 // the value of a number
}

func parseMessage(raw []byte) (message, error) {
	var m message
	for len(raw) > 0 {
		tag, n := binary.Uvarint(raw)
		if n <= 0 {
			return nil, errMessage
		}
		f := field{number: tag >> 3}
		switch tag & 7 {
		case 0:
			v, size := binary.Uvarint(raw[n:])
			if size <= 0 {
				return nil, errMessage
			}
			f.value = v
			n += size
		case 2:
			length, size := binary.Uvarint(raw[n:])
			if size <= 0 || length > uint64(len(raw)-n-size) {
				return nil, errMessage
			}
			n += size
			f.bytes = raw[n : n+int(length)]
			n += int(length)
		case 1:
			n += 8
		case 5:
			n += 4
		default:
			return nil, errMessage
		}
		if n > len(raw) {
			return nil, errMessage
		}
		f.raw, raw = raw[:n], raw[n:]
		m = append(m, f)
	}
	return m, nil
}

// text returns the content of a field, or "" if there is none.
func (m message) text(number uint64) (s string) {
	for _, f := range m {
		if f.number == number {
			s = string(f.bytes)
		}
	}
	return s
}

func (m message) number(number uint64) (v uint64) {
	for _, f := range m {
		if f.number == number {
			v = f.value
		}
	}
	return v
}

// successor returns the message of the task that takes the place of this one.
func (m message) successor(id, origin, lastErr string) []byte {
	var raw []byte
	for _, f := range m {
		if f.number == idField || f.number == errorField || f.number == headersField && headerName(f.bytes) == originHeader {
			continue
		}
		raw = append(raw, f.raw...)
	}
	raw = appendText(raw, idField, id)
	raw = appendText(raw, errorField, lastErr)
	return appendText(raw, headersField, string(appendText(appendText(nil, 1, originHeader), 2, origin)))
}

// headerName returns the key of an entry of a map, or "" if it has none.
func headerName(entry []byte) string {
	m, _ := parseMessage(entry)
	return m.text(1)
}

func appendText(raw []byte, number uint64, s string) []byte {
	raw = binary.AppendUvarint(raw, number<<3|2)
	raw = binary.AppendUvarint(raw, uint64(len(s)))
	return append(raw, s...)
}
