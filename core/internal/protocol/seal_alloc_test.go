//go:build !race

package protocol

import "testing"

// A free lock pays for the check of an id with no allocation.
func TestSealAllocatesNothing(t *testing.T) {
	seal := NewSeal()
	var text [sealedText]byte
	if n := testing.AllocsPerRun(100, func() { text = seal.id("shop:order:42", "api 7f9c") }); n != 0 {
		t.Errorf("%v allocations to make an id", n)
	}
	own, foreign := string(text[:])+":api 7f9c", RandomID()
	if n := testing.AllocsPerRun(100, func() {
		if !seal.Owns(own, "shop:order:42") || seal.Owns(foreign, "shop:order:42") {
			t.Error("not told apart")
		}
	}); n != 0 {
		t.Errorf("%v allocations to recognise one", n)
	}
}
