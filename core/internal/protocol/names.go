package protocol

import (
	"fmt"
	"strings"
)

// MaxKey is how long a stored key may be, in bytes, prefix included.
const MaxKey = 512

// companion begins every suffix that turns a lock's key into that of its fence or of a tombstone.
const companion = ":~"

const tombstone = "gone:"

// Names are the Redis keys of one lock.
type Names struct {
	Lock  string
	Fence string // like all companions in the same Cluster slot as Lock
	Line  string // who waits, in order
	Waits string // and what is to be known of them
	Entry string // who holds it together, see entry.lua; "" without a re-entry id
	Gone  string // the tombstone of one owner; "" without one
}

// base is what companions begin with.
func (n *Names) base() string { return strings.TrimSuffix(n.Fence, "fence") }

// Tombstone is that of an owner.
func (n *Names) Tombstone(owner string) string { return n.base() + tombstone + owner }

// Owner is whose the tombstone is.
func (n *Names) Owner() string { return n.Gone[len(n.base())+len(tombstone):] }

// Mark is the key of the last tick that was claimed.
func (n *Names) Mark() string { return n.base() + "mark" }

// Enter gives the lock a hash of those who hold it together.
func (n *Names) Enter() { n.Entry = n.base() + "entry" }

// NameKeys checks a stored key and derives its companions, for an owner whose id has three parts; a random part of "" is
// for no owner. A Cluster hashes what stands between the first '{' and the next '}', if anything does, else the whole
// key; companions must land in the same slot:
//
//	order:42       {order:42}:~fence       the key becomes the tag
//	{shop}order    {shop}order:~fence      its own tag stays the first
//	a}b            refused                 {a}b} would be hashed as "a"
//	{}x            refused                 an empty tag: no name with a suffix hashes like it
func NameKeys(key, random, colon, label string) (Names, error) {
	switch {
	case key == "":
		return Names{}, fmt.Errorf("empty key")
	case len(key) > MaxKey:
		return Names{}, fmt.Errorf("key of %d bytes, %d are allowed (see Key): %.40q...", len(key), MaxKey, key)
	case strings.IndexByte(key, 0) >= 0:
		return Names{}, fmt.Errorf("key with a NUL byte: %q", key)
	case strings.Contains(key, companion):
		return Names{}, fmt.Errorf("key with %q, which marks companion keys: %q", companion, key)
	}
	// What companions begin with: before + key + after.
	before, after := "{", "}"+companion
	if open := strings.IndexByte(key, '{'); open >= 0 {
		switch end := strings.IndexByte(key[open+1:], '}'); {
		case end == 0:
			return Names{}, fmt.Errorf("key with an empty hash tag {}: %q", key)
		case end > 0:
			before, after = "", companion
			if open == 0 && end == len(key)-2 {
				after = companion + companion // or {x} would share the companions of x
			}
		}
	}
	if before != "" && strings.IndexByte(key, '}') >= 0 {
		return Names{}, fmt.Errorf("key with a } that belongs to no hash tag: %q", key)
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
	keys := Names{Lock: key, Fence: name(5), Line: name(4), Waits: name(4)}
	if random != "" {
		keys.Gone = all
	}
	return keys, nil
}
