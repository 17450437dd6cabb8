package core

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	maxKey = 512 // bytes of a stored key, prefix included

	// Key hashes what is longer than maxJoined and keeps the beginning, for people who look at Redis.
	maxJoined = 256
	keptHead  = 128
)

// companion begins every suffix that turns a lock's key into that of its fence or of a tombstone.
const companion = ":~"

// Key joins user input into one lock key: Key("order", id) is "order:42". Different parts always make
// different keys, whatever they contain: every byte of a part other than letters, digits and "-._@+=/,"
// is written as %XX. The result has no braces (so that a Redis Cluster hashes all of it) and is at most
// 256 bytes: of a longer one the beginning is kept and the whole is hashed (SHA-256).
//
// No parts, or one empty part, make "", which every method refuses. Other empty parts count: Key("order", "")
// is "order:".
func Key(parts ...string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		escape(&b, p)
	}
	if b.Len() <= maxJoined {
		return b.String()
	}
	whole := b.String()
	sum := sha256.Sum256([]byte(whole))
	// '#' is escaped in parts, so that no shorter key can look like a hashed one.
	return whole[:keptHead] + "#" + hex.EncodeToString(sum[:])
}

func escape(b *strings.Builder, s string) {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._@+=/,", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
}

// names are the Redis keys of one lock.
type names struct {
	lock  string
	fence string // like all companions in the same Cluster slot as lock
	line  string // who waits, in order
	waits string // and what is to be known of them
	entry string // who holds it together, see entry.lua; "" without a re-entry id
	gone  string // the tombstone of one owner; "" without one
}

const tombstone = "gone:"

// base is what companions begin with.
func (n *names) base() string { return strings.TrimSuffix(n.fence, "fence") }

func (n *names) tombstone(owner string) string { return n.base() + tombstone + owner }

// owner is whose the tombstone is.
func (n *names) owner() string { return n.gone[len(n.base())+len(tombstone):] }

func (n *names) mark() string { return n.base() + "mark" }

// nameKeys checks a stored key and derives its companions. A Cluster hashes what stands between the first
// '{' and the next '}', if anything does, else the whole key; companions must land in the same slot:
//
//	order:42       {order:42}:~fence       the key becomes the tag
//	{shop}order    {shop}order:~fence      its own tag stays the first
//	a}b            refused                 {a}b} would be hashed as "a"
//	{}x            refused                 an empty tag: no name with a suffix hashes like it
func nameKeys(key string) (names, error) { return nameOwned(key, "", "", "") }

// nameOwned is nameKeys for an owner whose id has three parts.
func nameOwned(key, random, colon, label string) (names, error) {
	switch {
	case key == "":
		return names{}, invalid("empty key")
	case len(key) > maxKey:
		return names{}, invalid("key of %d bytes, %d are allowed (see Key): %.40q...", len(key), maxKey, key)
	case strings.IndexByte(key, 0) >= 0:
		return names{}, invalid("key with a NUL byte: %q", key)
	case strings.Contains(key, companion):
		return names{}, invalid("key with %q, which marks companion keys: %q", companion, key)
	}
	// What companions begin with: before + key + after.
	before, after := "{", "}"+companion
	if open := strings.IndexByte(key, '{'); open >= 0 {
		switch end := strings.IndexByte(key[open+1:], '}'); {
		case end == 0:
			return names{}, invalid("key with an empty hash tag {}: %q", key)
		case end > 0:
			before, after = "", companion
			if open == 0 && end == len(key)-2 {
				after = companion + companion // or {x} would share the companions of x
			}
		}
	}
	if before != "" && strings.IndexByte(key, '}') >= 0 {
		return names{}, invalid("key with a } that belongs to no hash tag: %q", key)
	}
	// One string for all of them, as they are made for each acquisition.
	all := before + key + after + "fence" + before + key + after + "line" + before + key + after + "wait" +
		before + key + after + tombstone + random + colon + label
	n := len(before) + len(key) + len(after)
	name := func(suffix int) string {
		s := all[:n+suffix]
		all = all[n+suffix:]
		return s
	}
	keys := names{lock: key, fence: name(5), line: name(4), waits: name(4)}
	if random != "" {
		keys.gone = all
	}
	return keys, nil
}
