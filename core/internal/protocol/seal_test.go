package protocol

import (
	"strings"
	"testing"
)

// A Seal recognises the ids that it made for a key, and no other text.
func TestSealKnowsItsOwn(t *testing.T) {
	seal, other := NewSeal(), NewSeal()
	keyOf := func(s string) Key {
		k, err := CheckKey(s)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := keyOf("k")
	id := func(s Seal, label string) string { names := k.Owned(s, label); return names.Owner() }
	plain, labelled := id(seal, ""), id(seal, "api 7f9c")
	anew := k.Names()
	anew.Anew(seal, "x")
	w := seal.Waiter("k", 1_764_000_000_000_000)
	for _, own := range []string{plain, labelled, anew.Owner()} {
		if !seal.Owns(own, "k") || seal.Expects(own, "k") {
			t.Errorf("%q: not known as an owner", own)
		}
	}
	for _, own := range []string{w, seal.Waiter("k", 0), seal.Waiter("k", -1<<63)} {
		if !seal.Expects(own, "k") || seal.Owns(own, "k") {
			t.Errorf("%q: not known as a waiter", own)
		}
	}
	if seal.Waiter("k", 999_999_999_999_999) > w {
		t.Error("an earlier waiter comes later")
	}
	if got := LabelOf(labelled); got != "api 7f9c" {
		t.Errorf("label %q", got)
	}

	last := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", plain[21])
	twin := plain[:21] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[last^1]) // the same bytes, loosely read
	for _, foreign := range []string{
		"", "~", ":", plain[:21], plain + "x", plain + ":", plain + ":x", plain + labelled, labelled[:22], labelled + "x", labelled + labelled,
		"x" + plain, plain[:10] + "\r" + plain[11:], twin, strings.ToUpper(plain), RandomID(), id(other, ""), id(other, "api 7f9c"),
		"~" + plain, w[1:], w[17:], w[:38], w + "x", "~0" + w[2:], w[:17] + plain, w[:17] + twin, w + ":", other.Waiter("k", 5),
	} {
		if seal.Owns(foreign, "k") || seal.Expects(foreign, "k") {
			t.Errorf("%q: taken for one of ours", foreign)
		}
	}
	for _, key := range []string{"", "K", "k ", "kk", "{k}:~fence", strings.Repeat("k", MaxKey)} {
		if seal.Owns(plain, key) || seal.Expects(w, key) {
			t.Errorf("taken for an owner of %q", key)
		}
	}
}

func BenchmarkNewID(b *testing.B) {
	seal := NewSeal()
	b.ReportAllocs()
	for b.Loop() {
		_ = seal.id("shop:order:42", "")
	}
}

func BenchmarkForeignID(b *testing.B) {
	seal, id := NewSeal(), RandomID()
	b.ReportAllocs()
	for b.Loop() {
		if seal.Owns(id, "shop:order:42") {
			b.Fatal("one of ours")
		}
	}
}
