package protocol

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLabel is how long a label may be, in bytes.
const MaxLabel = 64

// ErrReply is for a reply that no script of holdfast gives.
var ErrReply = errors.New("unexpected reply")

// ErrExhausted is for a key whose tokens are used up.
var ErrExhausted error = exhausted{}

type exhausted struct{}

func (exhausted) Error() string   { return "fencing tokens have reached 2^53" }
func (exhausted) Permanent() bool { return true }

// RandomID returns 128 random bits as text without punctuation except - and _.
func RandomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails, crashes the program instead
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// colon returns what separates the random part of an owner id from the label behind it. Some lock libraries compare
// only the beginning of a value with theirs, and a label may be somebody's whole value.
func colon(label string) string {
	if label == "" {
		return ""
	}
	return ":"
}

// Owned returns the names of k for a new owner. Its id is 96 random bits, the check of seal, and the label.
func (k *Key) Owned(seal Seal, label string) Names {
	id := seal.id(k.Lock, label)
	return k.names(string(id[:]), colon(label), label)
}

// Anew gives n a new owner with that label.
func (n *Names) Anew(seal Seal, label string) {
	id := seal.id(n.Lock, label)
	n.Gone = n.Tombstone(string(id[:]) + colon(label) + label)
}

// LabelOf returns the label in a lock's value, if the value has the form of ours: anybody can write values.
func LabelOf(value string) string {
	value = strings.TrimPrefix(value, severalHold)
	random, label, ok := strings.Cut(value, ":")
	if !ok || !ValidLabel(label) {
		return ""
	}
	if id, err := base64.RawURLEncoding.DecodeString(random); err != nil || len(id) != 16 {
		return ""
	}
	return label
}

func ValidLabel(s string) bool {
	return len(s) <= MaxLabel && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
