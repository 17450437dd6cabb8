package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// A table without a peer says so.
func TestEnvironmentNamesEveryPeer(t *testing.T) {
	target := newTestTarget(t)
	env, err := plan{}.environment(t.Context(), &server{addr: target.addr})
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range peers.Libraries() {
		want := lib.Module + " " + env.Modules[lib.Module]
		if !lib.Present() {
			want = lib.Module + " left out"
		}
		if !strings.Contains(env.sentence(), ", "+want) {
			t.Errorf("got %q, want %q in it", env.sentence(), want)
		}
	}
}
