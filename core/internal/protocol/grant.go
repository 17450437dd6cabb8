package protocol

import (
	"strconv"
	"strings"
)

// Grant is a message of grant.lua to an inbox: the lock is somebody's who waited in line. Of nudge.lua it is that the lock
// is free on one of several masters, and the owner is the id of the waiter.
type Grant struct {
	Owner string
	Token int64
	Time  int64 // of the server, in µs
	Key   string
}

// ReadGrant reads a message, a line each for owner, token, time and key.
func ReadGrant(text string) (g Grant, ok bool) {
	parts := strings.SplitN(text, "\n", 4)
	if len(parts) != 4 {
		return g, false
	}
	token, err1 := strconv.ParseInt(parts[1], 10, 64)
	at, err2 := strconv.ParseInt(parts[2], 10, 64)
	return Grant{parts[0], token, at, parts[3]}, err1 == nil && err2 == nil
}
