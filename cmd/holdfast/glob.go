package main

import (
	"fmt"
	"strings"
)

// Redis returns names that contain a match, because one pattern has to cover locks and their companions. This file then
// decides which of them match, by the rules of Redis: * ? [a-z] [^a], and \ before a character that stands for itself.

// checkGlob refuses a pattern that would mean something else to Redis once more text follows it.
func checkGlob(pattern string) error {
	for p := pattern; p != ""; {
		n, _ := match(p, 0)
		if n == 0 {
			return fmt.Errorf(`pattern %s: a [ without ], or a \ at the end`, printable(pattern))
		}
		p = p[n:]
	}
	return nil
}

// glob reports whether all of s matches a pattern that checkGlob accepts.
func glob(pattern, s string) bool {
	star, mark := "", -1 // the pattern after the last *, and where in s to resume with it
	for i := 0; ; {
		if strings.HasPrefix(pattern, "*") {
			pattern = pattern[1:]
			star, mark = pattern, i
			continue
		}
		if i == len(s) && pattern == "" {
			return true
		}
		if i < len(s) && pattern != "" {
			if n, ok := match(pattern, s[i]); ok {
				pattern, i = pattern[n:], i+1
				continue
			}
		}
		if mark < 0 || mark == len(s) {
			return false
		}
		mark++
		pattern, i = star, mark
	}
}

// match reports whether c matches the first element of a pattern, other than *, and how long that element is. The length is
// 0 if the element has no end.
func match(pattern string, c byte) (n int, ok bool) {
	switch pattern[0] {
	case '?', '*':
		return 1, true
	case '\\':
		if len(pattern) == 1 {
			return 0, false
		}
		return 2, pattern[1] == c
	case '[':
	default:
		return 1, pattern[0] == c
	}
	i, not, found := 1, false, false
	if strings.HasPrefix(pattern[i:], "^") {
		i, not = 2, true
	}
	for ; i < len(pattern); i++ {
		switch {
		case pattern[i] == ']':
			return i + 1, found != not
		case pattern[i] == '\\' && i+1 < len(pattern):
			i++
			found = found || pattern[i] == c
		case i+2 < len(pattern) && pattern[i+1] == '-':
			lo, hi := min(pattern[i], pattern[i+2]), max(pattern[i], pattern[i+2])
			found = found || lo <= c && c <= hi
			i += 2
		default:
			found = found || pattern[i] == c
		}
	}
	return 0, false
}
