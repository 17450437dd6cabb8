package protocol

import (
	"fmt"
	"strings"
)

// MaxKey is how long a stored key may be, in bytes, including the prefix.
const MaxKey = 512

// companion begins every suffix that turns a lock's key into that of its fence or of a tombstone.
const companion = ":~"

const tombstone = "gone:"

// Names are the Redis keys of one lock.
type Names struct {
	Lock  string
	Fence string // like all companions, in the same Cluster slot as Lock
	Line  string // the waiters, in order
	Waits string // what is known of each waiter
	Held  string // its holders if several hold it, see held.lua
	Gone  string // the tombstone of one owner; "" without one

	Admits string // which others the owner lets hold the lock beside it, see the function; "" for none
}

// base returns what companions begin with.
func (n *Names) base() string { return strings.TrimSuffix(n.Fence, "fence") }

// Tombstone returns the key of an owner's tombstone.
func (n *Names) Tombstone(owner string) string { return n.base() + tombstone + owner }

// Owner returns the owner whose tombstone n has.
func (n *Names) Owner() string { return n.Gone[len(n.base())+len(tombstone):] }

// Mark returns the key of the last tick that was claimed.
func (n *Names) Mark() string { return n.base() + "mark" }

// A Key is a stored key that has been checked.
type Key struct {
	Lock          string
	before, after string // what a companion has before and after the lock's key, without its suffix
}

// CheckKey checks a stored key. Redis Cluster hashes what is between the first '{' and the next '}', if there is
// anything, else the whole key. Companions must be in the same slot:
//
//	order:42       {order:42}:~fence       the key becomes the tag
//	{shop}order    {shop}order:~fence      its own tag stays the first
//	a}b            refused                 {a}b} would be hashed as "a"
//	{}x            refused                 an empty tag: no name with a suffix hashes like it
func CheckKey(key string) (Key, error) {
	switch {
	case key == "":
		return Key{}, fmt.Errorf("empty key")
	case len(key) > MaxKey:
		return Key{}, fmt.Errorf("key of %d bytes, %d are allowed (see Key), beginning with %.40q", len(key), MaxKey, key)
	case strings.IndexByte(key, 0) >= 0:
		return Key{}, fmt.Errorf("key with a NUL byte: %q", key)
	case strings.Contains(key, companion):
		return Key{}, fmt.Errorf("key with %q, which marks companion keys: %q", companion, key)
	}
	before, after := "{", "}"+companion
	if open := strings.IndexByte(key, '{'); open >= 0 {
		switch end := strings.IndexByte(key[open+1:], '}'); {
		case end == 0:
			return Key{}, fmt.Errorf("key with an empty hash tag {}: %q", key)
		case end > 0:
			before, after = "", companion
			if open == 0 && end == len(key)-2 {
				after = companion + companion // or {x} would share the companions of x
			}
		}
	}
	if before != "" && strings.IndexByte(key, '}') >= 0 {
		return Key{}, fmt.Errorf("key with a } that belongs to no hash tag: %q", key)
	}
	return Key{key, before, after}, nil
}

// NameKeys checks a stored key and derives its companions.
func NameKeys(key string) (Names, error) {
	k, err := CheckKey(key)
	if err != nil {
		return Names{}, err
	}
	return k.Names(), nil
}

// Names returns the names for k, without an owner.
func (k *Key) Names() Names { return k.names("", "", "") }

// names returns the names for an owner whose id has three parts, or for none if random is "".
func (k *Key) names(random, colon, label string) Names {
	before, key, after := k.before, k.Lock, k.after
	// One string for all of them, because they are made for each owner.
	all := before + key + after + "fence" + before + key + after + "line" + before + key + after + "wait" + before + key + after + "held" +
		before + key + after + tombstone + random + colon + label
	n := len(before) + len(key) + len(after)
	name := func(suffix int) string {
		s := all[:n+suffix]
		all = all[n+suffix:]
		return s
	}
	keys := Names{Lock: key, Fence: name(5), Line: name(4), Waits: name(4), Held: name(4)}
	if random != "" {
		keys.Gone = all
	}
	return keys
}
