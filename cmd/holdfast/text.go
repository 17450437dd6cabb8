package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// printable returns s in a form that is safe to print to a terminal: text that anybody can write into Redis must not move
// the cursor, or pass for something else. It quotes unusual strings in Go syntax, which show -quoted accepts.
func printable(s string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' || r == '"' || r == '\\' }
	if s != "" && s != "-" && utf8.ValidString(s) && !strings.ContainsFunc(s, odd) {
		return s
	}
	return strconv.Quote(s)
}

// printableText does the same for a text of several words, without quotes.
func printableText(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// errorText returns the text of an error. A server that does not know a command repeats the arguments, which are the
// password if the command is AUTH or HELLO.
func errorText(err error) string {
	text, _, _ := strings.Cut(err.Error(), ", with args beginning with:")
	return printableText(strings.TrimPrefix(text, "holdfast: "))
}

func unquote(s string) (string, error) {
	key, err := strconv.Unquote(s)
	if err != nil {
		return "", fmt.Errorf("-quoted %s: it is not a quoted Go string", printable(s))
	}
	return key, nil
}

// brief formats a duration with few digits.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Truncate(time.Millisecond).String()
	case d < time.Minute:
		return d.Truncate(100 * time.Millisecond).String()
	}
	return d.Truncate(time.Second).String()
}
