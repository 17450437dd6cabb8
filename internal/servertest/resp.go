package servertest

import (
	"bytes"
	"errors"
	"strconv"
)

// errNotRESP marks bytes that are no Redis protocol: the relay then passes
// everything on as it comes.
var errNotRESP = errors.New("servertest: not the Redis protocol")

// frameLen returns the length of the first complete RESP2 or RESP3 value in
// buf, or 0 when more bytes are needed.
func frameLen(buf []byte) (int, error) {
	head, n, err := line(buf)
	if n == 0 || err != nil {
		return 0, err
	}
	switch kind := head[0]; kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return n, nil
	case '$', '=', '!':
		size, err := size(head)
		if err != nil {
			return 0, err
		}
		if size < 0 {
			return n, nil // a null
		}
		if n += size + 2; n > len(buf) {
			return 0, nil
		}
		return n, nil
	case '*', '~', '>', '%', '|':
		size, err := size(head)
		if err != nil {
			return 0, err
		}
		switch kind {
		case '%':
			size *= 2
		case '|': // attributes, then the value they belong to
			size = 2*size + 1
		}
		for range size {
			m, err := frameLen(buf[n:])
			if m == 0 || err != nil {
				return 0, err
			}
			n += m
		}
		return n, nil
	}
	return 0, errNotRESP
}

// maxLine bounds a type line, so that a stream of something else is recognised
// although it never has a line break.
const maxLine = 64 << 10

// line returns the first line without its end, and its length with it, 0 when
// it is not complete.
func line(buf []byte) ([]byte, int, error) {
	if len(buf) == 0 {
		return nil, 0, nil
	}
	if bytes.IndexByte([]byte("+-:_#,($=!*~>%|"), buf[0]) < 0 {
		return nil, 0, errNotRESP
	}
	end := bytes.Index(buf, []byte("\r\n"))
	if end < 0 {
		if len(buf) > maxLine || counted(buf[0]) && !digits(buf[1:]) {
			return nil, 0, errNotRESP
		}
		return nil, 0, nil
	}
	return buf[:end], end + 2, nil
}

// counted reports whether a type line holds a number and nothing else.
func counted(kind byte) bool { return bytes.IndexByte([]byte("$=!*~>%|"), kind) >= 0 }

// digits reports whether buf can be the beginning of a number and a line end.
func digits(buf []byte) bool {
	return len(bytes.Trim(buf, "-0123456789\r")) == 0
}

func size(head []byte) (int, error) {
	n, err := strconv.Atoi(string(head[1:]))
	if err != nil || n < -1 || n > 512<<20 {
		return 0, errNotRESP
	}
	return n, nil
}

// bulkStrings returns the elements of a frame that is a list of bulk strings,
// as a command or a published message is, and nil for any other.
func bulkStrings(frame []byte) []string {
	head, n, err := line(frame)
	if err != nil || n == 0 || (head[0] != '*' && head[0] != '>') {
		return nil
	}
	count, err := size(head)
	if err != nil || count < 1 {
		return nil
	}
	var list []string
	for range count {
		head, m, err := line(frame[n:])
		if err != nil || m == 0 || head[0] != '$' {
			return nil
		}
		size, err := size(head)
		if err != nil || size < 0 || n+m+size+2 > len(frame) {
			return nil
		}
		list = append(list, string(frame[n+m:n+m+size]))
		n += m + size + 2
	}
	return list
}
