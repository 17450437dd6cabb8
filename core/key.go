package holdfast

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

const (
	// Key hashes what is longer than maxJoined and keeps the beginning, for people who look at Redis.
	maxJoined = 256
	keptHead  = 128
)

// Key joins parts, such as user input, into one key: Key("order", id) is "order:42". Different parts always make
// different keys: every byte of a part other than letters, digits and "-._@+=/," is written as %XX. The result has at
// most 256 bytes: a longer key is cut, and the SHA-256 of the whole is appended. Key() and Key("") are "", which every
// method refuses.
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
	joined := b.String()
	sum := sha256.Sum256([]byte(joined))
	// '#' is escaped in parts, so that no shorter key can look like a hashed one.
	return joined[:keptHead] + "#" + hex.EncodeToString(sum[:])
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

// nameKeys checks a stored key and derives its companions.
func nameKeys(key string) (protocol.Names, error) {
	names, err := protocol.NameKeys(key)
	if err != nil {
		return names, invalid("%v", err)
	}
	return names, nil
}
