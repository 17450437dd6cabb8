package main

import (
	"encoding/base64"
	"strings"
)

// companion begins the suffix of the keys that holdfast keeps beside a lock.
const companion = ":~"

// baseOf returns what the companions of a lock begin with: {order:42}:~ for order:42, and {shop}order:~ for a key with a
// hash tag of its own, because they must be in the key's Cluster slot. ok is false for a name that cannot be a lock's key.
func baseOf(key string) (base string, ok bool) {
	if key == "" || len(key) > 512 || strings.Contains(key, companion) || strings.IndexByte(key, 0) >= 0 {
		return "", false
	}
	if open := strings.IndexByte(key, '{'); open >= 0 {
		switch end := strings.IndexByte(key[open+1:], '}'); {
		case end == 0:
			return "", false
		case end > 0 && open == 0 && end == len(key)-2: // {x}, which would otherwise share the companions of x
			return key + companion + companion, true
		case end > 0:
			return key + companion, true
		}
	}
	if strings.IndexByte(key, '}') >= 0 {
		return "", false
	}
	return "{" + key + "}" + companion, true
}

// lockOf returns the lock that a companion belongs to, as the inverse of baseOf. ok is false for the companions of a single
// call and of a claimed name, and for keys that only look like companions.
func lockOf(name string) (key string, ok bool) {
	at := strings.Index(name, companion)
	if at < 0 {
		return "", false
	}
	key, suffix := name[:at], name[at+len(companion):]
	if rest, double := strings.CutPrefix(suffix, companion); double {
		suffix = rest
	} else if n := len(key); n > 2 && key[0] == '{' && strings.IndexByte(key, '}') == n-1 {
		key = key[1 : n-1]
	}
	switch suffix {
	case "fence", "line", "wait", "held", "share":
		base, ok := baseOf(key)
		return key, ok && base+suffix == name
	}
	return "", false
}

// ownLabel parses the value of a lock: 16 random bytes in base64, then a colon and a label, and a = in front if several hold
// the lock. ok is false for a value of another form, which another library wrote.
func ownLabel(value string) (label string, ok bool) {
	random, label, _ := strings.Cut(strings.TrimPrefix(value, "="), ":")
	id, err := base64.RawURLEncoding.Strict().DecodeString(random)
	return label, err == nil && len(id) == 16
}

// lockValue reports whether a value looks like that of a lock. holdfast, redsync and redislock all write 16 random bytes in
// base64.
func lockValue(value string) bool {
	if _, ok := ownLabel(value); ok {
		return true
	}
	id, err := base64.StdEncoding.Strict().DecodeString(value)
	return err == nil && len(id) == 16 && len(value) == 24
}
