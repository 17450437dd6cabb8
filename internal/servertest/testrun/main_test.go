package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// registry is a folder that the go command downloads from, as from a proxy.
type registry struct{ dir string }

func (g registry) env(cache string) []string {
	return []string{"GOPROXY=file://" + filepath.ToSlash(g.dir), "GOMODCACHE=" + cache, "GOSUMDB=off", "GOFLAGS=-modcacherw -buildvcs=false",
		"GOWORK=off", "GONOPROXY=", "GOPRIVATE=", "GOTOOLCHAIN=local", "GOINSECURE="}
}

// publish offers a module of one package that says its name.
func (g registry) publish(t *testing.T, mod, source string) {
	t.Helper()
	const version = "v1.0.0"
	gomod := "module " + mod + "\n\ngo 1.24\n"
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for name, text := range map[string]string{"go.mod": gomod, "a.go": source} {
		f, err := w.Create(mod + "@" + version + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, text)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	base := mod + "/@v/" + version
	write(t, g.dir, map[string]string{
		mod + "/@v/list": version + "\n",
		base + ".info":   `{"Version":"` + version + `"}`,
		base + ".mod":    gomod,
		base + ".zip":    archive.String(),
	})
}

func (g registry) withdraw(t *testing.T, mod string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(g.dir, filepath.FromSlash(mod))); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// repository has two modules. Of the packages of the first, plain needs example.com/present, adapter needs
// example.com/absent, and peers can do without it.
func repository(t *testing.T) (dir string, reg registry) {
	t.Helper()
	dir = t.TempDir()
	folder, err := os.MkdirTemp("", "registry") // GOPROXY is a list: the name of a test may hold a comma
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	reg = registry{folder}
	reg.publish(t, "example.com/present", "package present\n\nconst Name = \"present\"\n")
	reg.publish(t, "example.com/absent", "package absent\n\nconst Name = \"absent\"\n")
	passes := "import \"testing\"\n\nfunc TestPasses(t *testing.T) {}\n"
	write(t, dir, map[string]string{
		"go.mod":                 "module example.com/m\n\ngo 1.24\n\nrequire (\n\texample.com/absent v1.0.0\n\texample.com/present v1.0.0\n)\n",
		"plain/a.go":             "package plain\n\nimport \"example.com/present\"\n\nconst Name = present.Name\n",
		"plain/a_test.go":        "package plain\n\n" + passes,
		"adapter/a.go":           "package adapter\n\nimport \"example.com/absent\"\n\nconst Name = absent.Name\n",
		"adapter/a_test.go":      "package adapter\n\n" + passes,
		"peers/a.go":             "package peers\n\nvar Names []string\n",
		"peers/absent.go":        "//go:build !without_absent\n\npackage peers\n\nimport \"example.com/absent\"\n\nfunc init() { Names = append(Names, absent.Name) }\n",
		"peers/a_test.go":        "package peers\n\nimport \"testing\"\n\nfunc TestNames(t *testing.T) { t.Logf(\"peers: %q\", Names) }\n",
		"nested/go.mod":          "module example.com/m/nested\n\ngo 1.24\n",
		"nested/a_test.go":       "package nested\n\n" + passes,
		"nested/testdata/go.mod": "module not/looked/at\n",
	})
	tidied.Lock()
	defer tidied.Unlock()
	if tidied.sum == "" {
		cmd := exec.Command("go", "mod", "tidy")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), reg.env(t.TempDir())...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go mod tidy: %v\n%s", err, out)
		}
		sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		tidied.sum = string(sum)
	}
	write(t, dir, map[string]string{"go.sum": tidied.sum})
	return dir, reg
}

// tidied has what all repositories have in go.sum, as go mod tidy wrote it for the first.
var tidied struct {
	sync.Mutex
	sum string
}

// play runs the program in dir on a machine whose module cache is empty.
func play(t *testing.T, dir string, reg registry) (status int, output string) {
	t.Helper()
	var out bytes.Buffer
	env := append(os.Environ(), reg.env(t.TempDir())...)
	status = (&run{dir: dir, env: env, out: &out}).test(t.Context(), []string{"-v", "-count=1"})
	return status, out.String()
}

func TestModulesThatCannotBeDownloaded(t *testing.T) {
	const absent = "example.com/absent@v1.0.0 cannot be downloaded"
	tests := []struct {
		name    string
		change  func(t *testing.T, dir string, reg registry)
		without []string // folders, to save time
		status  int
		want    []string // parts of the output
		not     []string
	}{
		{
			name:   "nothing is missing",
			change: func(*testing.T, string, registry) {},
			want:   []string{"ok  \texample.com/m/plain\t", "ok  \texample.com/m/adapter\t", "ok  \texample.com/m/nested\t", `peers: ["absent"]`, "== summary: 4 packages"},
			not:    []string{"NOT RUN", "FAILED", "not/looked/at"},
		},
		{
			name:   "one is refused",
			change: func(t *testing.T, _ string, reg registry) { reg.withdraw(t, "example.com/absent") },
			want: []string{"ok  \texample.com/m/plain\t", "ok  \texample.com/m/nested\t", "peers: []", "== summary: 3 packages",
				"\nNOT RUN: adapter: " + absent + "\n", "\nNOT RUN: part of peers: " + absent + "\n"},
			not: []string{"FAILED", "ok  \texample.com/m/adapter"},
		},
		{
			name: "one is refused, and a package does not compile",
			change: func(t *testing.T, dir string, reg registry) {
				reg.withdraw(t, "example.com/absent")
				write(t, dir, map[string]string{"plain/a.go": "package plain\n\nconst Name = 1 +\n"})
			},
			without: []string{"nested", "peers"},
			status:  1,
			want:    []string{"NOT RUN: adapter: " + absent, "FAILED: .: "},
		},
		{
			name: "the package that lacks it has a mistake, too",
			change: func(t *testing.T, dir string, reg registry) {
				reg.withdraw(t, "example.com/absent")
				write(t, dir, map[string]string{"adapter/b.go": "package other\n"})
			},
			without: []string{"nested", "peers"},
			status:  1,
			want:    []string{"FAILED: .: "},
			not:     []string{"NOT RUN: adapter"},
		},
		{
			name: "an import that no go.mod requires",
			change: func(t *testing.T, dir string, reg registry) {
				write(t, dir, map[string]string{"nested/b.go": "package nested\n\nimport _ \"example.com/unknown\"\n"})
			},
			without: []string{"adapter", "peers"},
			status:  1,
			want:    []string{"FAILED: nested: "},
		},
		{
			name: "a checksum differs",
			change: func(t *testing.T, _ string, reg registry) {
				reg.publish(t, "example.com/absent", "package absent\n\nconst Name = \"another\"\n")
			},
			without: []string{"nested", "peers", "plain"},
			status:  1,
			want:    []string{"checksum mismatch", "FAILED: .: "},
			not:     []string{"NOT RUN"},
		},
		{
			name: "a checksum is not known",
			change: func(t *testing.T, dir string, reg registry) {
				write(t, dir, map[string]string{"go.sum": ""})
			},
			without: []string{"nested", "peers", "plain"},
			status:  1,
			want:    []string{"FAILED: .: "},
			not:     []string{"NOT RUN"},
		},
		{
			name: "an archive is broken",
			change: func(t *testing.T, _ string, reg registry) {
				write(t, reg.dir, map[string]string{"example.com/absent/@v/v1.0.0.zip": "no archive"})
			},
			without: []string{"nested", "peers", "plain"},
			status:  1,
			want:    []string{"FAILED: .: "},
			not:     []string{"NOT RUN"},
		},
		{
			name: "a test fails",
			change: func(t *testing.T, dir string, reg registry) {
				reg.withdraw(t, "example.com/absent")
				write(t, dir, map[string]string{"nested/b_test.go": "package nested\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { t.Fail() }\n"})
			},
			without: []string{"adapter", "peers"},
			status:  1,
			want:    []string{"--- FAIL: TestFails", "FAILED: nested: "},
			not:     []string{"FAILED: .: "},
		},
		{
			name: "vet finds something",
			change: func(t *testing.T, dir string, _ registry) {
				write(t, dir, map[string]string{"nested/b.go": "package nested\n\nfunc F() {\n\tx := 1\n\tx = x\n}\n"})
			},
			without: []string{"adapter", "peers"},
			status:  1,
			want:    []string{"self-assignment", "FAILED: nested: "},
		},
		{
			name:    "nothing can be tested",
			change:  func(t *testing.T, _ string, reg registry) { reg.withdraw(t, "example.com/absent") },
			without: []string{"plain", "peers", "nested"},
			status:  1,
			want:    []string{"NOT RUN: adapter: " + absent, "FAILED: nothing could be tested"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, reg := repository(t)
			for _, folder := range tt.without {
				if err := os.RemoveAll(filepath.Join(dir, folder)); err != nil {
					t.Fatal(err)
				}
			}
			tt.change(t, dir, reg)
			status, out := play(t, dir, reg)
			if status != tt.status {
				t.Errorf("got status %d, want %d", status, tt.status)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(out, not) {
					t.Errorf("the output has %q", not)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for complaint, want := range map[string]string{
		"github.com/a/b@v0.26.0: reading https://proxy.example/github.com/a/b/@v/v0.26.0.zip: 403 Forbidden":                                   "github.com/a/b@v0.26.0",
		"github.com/a/b@v0.26.0: reading https://proxy.example/github.com/a/b/@v/v0.26.0.zip: 403 Forbidden\n\tserver response: not available": "github.com/a/b@v0.26.0",
		"a.com/b/v2@v2.0.0-rc.1: reading https://proxy.example/b/@v/v2.0.0-rc.1.mod: 404 Not Found":                                            "a.com/b/v2@v2.0.0-rc.1",
		"go: example.com/m requires\n\ta.com/b@v1.0.0: reading file:///proxy/a.com/b/@v/v1.0.0.mod: no such file or directory":                 "a.com/b@v1.0.0",
		`a.com/b@v1.0.0: Get "https://proxy.example/a.com/b/@v/v1.0.0.zip": dial tcp: lookup proxy.example: no such host`:                      "a.com/b@v1.0.0",
		`a.com/b@v1.0.0: Get "https://proxy.example/a.com/b/@v/v1.0.0.zip": dial tcp 127.0.0.1:9: connect: connection refused`:                 "a.com/b@v1.0.0",
		"a.com/b@v1.0.0: module lookup disabled by GOPROXY=off":                                                                                "a.com/b@v1.0.0",
		"verifying a.com/b@v1.0.0: checksum mismatch\n\tdownloaded: h1:x\n\tgo.sum: h1:y\n\nSECURITY ERROR":                                    "",
		"a.com/b@v1.0.0: missing go.sum entry for go.mod file":                                                                                 "",
		"a.com/b@v1.0.0: zip: not a valid zip file":                                                                                            "",
		"no required module provides package a.com/b; to add it:\n\tgo get a.com/b":                                                            "",
		"core/a.go:3:1: expected declaration, found reading":                                                                                   "",
	} {
		if got, ok := refused(complaint); got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", complaint, got, ok, want)
		}
	}
}

func TestTagOf(t *testing.T) {
	for mod, want := range map[string]string{
		"github.com/bsm/redislock@v0.10.0":         "without_redislock",
		"github.com/go-redsync/redsync/v4@v4.18.1": "without_redsync",
		"gorm.io/driver-x.y@v1.0.0":                "without_driver_x_y",
	} {
		if got := tagOf(mod); got != want {
			t.Errorf("%s: got %q, want %q", mod, got, want)
		}
	}
}

// What two modules print at the same time does not mix within a package, and nothing is held back at the end.
func TestPackageLines(t *testing.T) {
	var all bytes.Buffer
	out := &output{to: &all}
	a, b := &packageLines{to: out}, &packageLines{to: out}
	write := func(l *packageLines, text string) {
		t.Helper()
		if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	write(a, "--- FAIL: TestA (0.1s)\n    a_test.go:1: wro")
	write(b, "ok  \texample.com/b\t0.1s\nok  \texam")
	write(a, "ng\nFAIL\nFAIL\texample.com/a\t0.2s\n?   \texample.com/none\t[no test files]\npanic")
	write(b, "ple.com/c\t0.1s\n")
	a.flush()
	b.flush()
	want := "ok  \texample.com/b\t0.1s\n" +
		"--- FAIL: TestA (0.1s)\n    a_test.go:1: wrong\nFAIL\nFAIL\texample.com/a\t0.2s\n?   \texample.com/none\t[no test files]\n" +
		"ok  \texample.com/c\t0.1s\npanic"
	if all.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &all, want)
	}
}
