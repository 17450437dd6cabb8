package protocol

import (
	"strconv"
	"strings"
)

// Grant is a message to an inbox. From grant.lua it says that Owner, which waited in line, now holds the lock. From
// nudge.lua it says that the lock is free on one of several masters, and Owner is the id of the waiter.
type Grant struct {
	Owner string
	Token int64
	Time  int64 // of the server, in µs
	Key   string
}

// ReadGrant reads a message: owner, token, time and key, one on each line.
func ReadGrant(text string) (g Grant, ok bool) {
	parts := strings.SplitN(text, "\n", 4)
	if len(parts) != 4 {
		return g, false
	}
	token, err1 := strconv.ParseInt(parts[1], 10, 64)
	at, err2 := strconv.ParseInt(parts[2], 10, 64)
	return Grant{parts[0], token, at, parts[3]}, err1 == nil && err2 == nil
}
