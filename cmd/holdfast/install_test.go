package main

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// published is a folder that the go command downloads this module from, as version of it, as from a proxy.
func published(t *testing.T, module, version string) (folder string) {
	t.Helper()
	root, folder := filepath.Join("..", ".."), t.TempDir()
	at := filepath.Join(folder, filepath.FromSlash(module), "@v")
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"list": version + "\n", version + ".info": `{"Version":"` + version + `"}`, version + ".mod": string(gomod)} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	archive, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	w := zip.NewWriter(archive)
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if name != root && (err == nil || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir // another module, as in what a proxy serves
			}
			return nil
		}
		if !d.Type().IsRegular() || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		from, err := os.Open(name)
		if err != nil {
			return err
		}
		defer from.Close()
		to, err := w.Create(module + "@" + version + "/" + filepath.ToSlash(rel))
		if err == nil {
			_, err = io.Copy(to, from)
		}
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// go install refuses a module with a replace directive, and finds none of what lies in a nested module. With -n it compiles
// nothing, which takes minutes on a busy machine; a soak does.
func TestGoInstall(t *testing.T) {
	const module, version = "github.com/holdfast-go/holdfast", "v0.1.0"
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules, proxies, _ := strings.Cut(strings.TrimSpace(string(cache)), "\n")
	bin, args := t.TempDir(), []string{"install", "-n", module + "/cmd/holdfast@" + version}
	soak := os.Getenv("HOLDFAST_SOAK") != ""
	if soak {
		args = slices.Delete(args, 1, 2)
	}
	install := exec.Command("go", args...)
	install.Dir = bin // outside of any module
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw", "GOWORK=off", "GOSUMDB=off",
		// What this module needs is in the machine's cache already, which is laid out as a proxy is.
		"GOPROXY="+strings.Join([]string{"file://" + filepath.ToSlash(published(t, module, version)), "file://" + filepath.ToSlash(filepath.Join(modules, "cache", "download")), proxies}, ","))
	out, err := install.CombinedOutput()
	if err != nil || !soak && !strings.Contains(string(out), filepath.Join(bin, "holdfast")) {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	if !soak {
		return
	}
	out, err = exec.Command(filepath.Join(bin, "holdfast"), "help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "usage:") {
		t.Errorf("holdfast help: %v\n%s", err, out)
	}
}
