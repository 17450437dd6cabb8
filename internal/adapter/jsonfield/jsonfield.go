// Package jsonfield finds the field of a JSON object that names a lock, for the adapters.
package jsonfield

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Find returns the field of the JSON object in text that path leads to: each name but the last is that of an object. The
// field is a string that is not empty, or a number as it is written, but "0" for -0, which is the same integer.
//
// The handler that reads the field with encoding/json must find what Find finds. So an object may have each name of path
// only once, in whatever case: encoding/json stores the last of several in a struct, and merges several objects there, but
// not in a map.
//
// The error says what something has, instead of such a field, in its in: "no field ...". It matches ErrAbsent if the text
// does not have the field, or has null or "" there.
func Find(text []byte, in string, path []string) (string, error) {
	value := bytes.Trim(text, space)
	switch {
	case len(value) == 0:
		return "", absent("no %s", in)
	case value[0] != '{' || !json.Valid(value):
		return "", fmt.Errorf("a %s that is not a JSON object", in)
	}
	for i, name := range path {
		field := strings.Join(path[:i+1], ".")
		if value[0] != '{' {
			return "", absent("no field %q in its %s", field, in)
		}
		var other []byte
		switch value, other = member(value, name); {
		case other != nil:
			return "", fmt.Errorf("a field %.100q in its %s; only %q is allowed, once", other, in, name)
		case value == nil:
			return "", absent("no field %q in its %s", field, in)
		}
	}
	field := strings.Join(path, ".")
	switch c := value[0]; {
	case string(value) == "-0":
		return "0", nil
	case c == '-', '0' <= c && c <= '9':
		return string(value), nil
	case c == 'n':
		return "", absent("a field %q in its %s that is neither a string nor a number", field, in)
	case c != '"':
		return "", fmt.Errorf("a field %q in its %s that is neither a string nor a number", field, in)
	case len(value) == len(`""`):
		return "", absent("an empty field %q in its %s", field, in)
	}
	return string(unquote(value)), nil
}

// ErrAbsent is matched by the error of a field that is not there.
var ErrAbsent = errors.New("no field")

type absentError string

func (e absentError) Error() string        { return string(e) }
func (e absentError) Is(target error) bool { return target == ErrAbsent }

func absent(format string, args ...any) error { return absentError(fmt.Sprintf(format, args...)) }

// What follows goes through the text of valid JSON. A map, or the tokens, of an object with very many fields would take
// many times the time and the memory.

const space = " \t\r\n"

// member returns the value that an object has under name, or another name that it has, which is the same again or differs
// only in case.
func member(object []byte, name string) (value, other []byte) {
	want := []byte(name)
	for rest := skip(object[1:]); rest[0] != '}'; rest = skip(rest) {
		var key, v []byte
		key, rest = next(rest)
		v, rest = next(skip(rest))
		switch key = unquote(key); {
		case !bytes.EqualFold(key, want):
		case value != nil || !bytes.Equal(key, want):
			return nil, key
		default:
			value = v
		}
	}
	return value, nil
}

// next splits text behind the value that it begins with.
func next(text []byte) (value, rest []byte) {
	depth := 0
	for i := 0; ; i++ {
		switch text[i] {
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth == 0 && (i+1 == len(text) || strings.IndexByte(space+",:]}", text[i+1]) >= 0) {
			return text[:i+1], text[i+1:]
		}
	}
}

// skip cuts off what stands between two values.
func skip(text []byte) []byte {
	for strings.IndexByte(space+",:", text[0]) >= 0 {
		text = text[1:]
	}
	return text
}

// unquote returns what a string says.
func unquote(quoted []byte) []byte {
	if s := quoted[1 : len(quoted)-1]; bytes.IndexByte(s, '\\') < 0 && utf8.Valid(s) {
		return s
	}
	var s string
	_ = json.Unmarshal(quoted, &s) // it is valid
	return []byte(s)
}
