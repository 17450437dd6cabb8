package throwaway

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFindPrefersPathThenTheHighestVersion(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"9", "15", "16", "path"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := func(dir, name string) string {
		path := filepath.Join(root, dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pattern := filepath.Join(root, "1*")
	program("15", "serve")
	highest := program("16", "serve")
	t.Setenv("PATH", filepath.Join(root, "path"))
	if got, err := Find([]string{"serve"}, pattern); got != highest || err != nil {
		t.Errorf("got %s, %v, want %s", got, err, highest)
	}
	inPath := program("path", "serve")
	if got, err := Find([]string{"serve"}, pattern); got != inPath || err != nil {
		t.Errorf("got %s, %v, want %s", got, err, inPath)
	}
}

func TestTakenPortIsTriedNoMoreThanNeeded(t *testing.T) {
	var ports []int
	err := OnFreePort(func(port int) error {
		ports = append(ports, port)
		if len(ports) < 3 {
			return errors.New("bind: address already in use")
		}
		return nil
	})
	if err != nil || len(ports) != 3 {
		t.Errorf("got %v after ports %v, want success at the third", err, ports)
	}
	broken := errors.New("cannot start at all")
	tries := 0
	err = OnFreePort(func(int) error { tries++; return broken })
	if !errors.Is(err, broken) || tries != 1 {
		t.Errorf("got %v after %d tries, want the error of the first", err, tries)
	}
}
