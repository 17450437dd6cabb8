package main

import (
	"slices"
	"strings"
	"testing"
)

// A table without a peer says so.
func TestEnvironmentNamesEveryPeer(t *testing.T) {
	target := newTestTarget(t)
	env, err := plan{}.environment(t.Context(), &server{addr: target.addr})
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range peers {
		want := module + " " + env.Modules[module]
		if !slices.Contains(present, module) {
			want = module + " left out"
		}
		if !strings.Contains(env.sentence(), ", "+want) {
			t.Errorf("got %q, want %q in it", env.sentence(), want)
		}
	}
}
