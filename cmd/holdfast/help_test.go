package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestHelpOfEachCommandNamesItsFlags(t *testing.T) {
	all := play(t, "127.0.0.1:1", "help").stdout
	for _, v := range verbs {
		r := play(t, "127.0.0.1:1", "help", v.name)
		if r.status != 0 || pages[v.name] == "" || !strings.Contains(r.stdout, pages[v.name]) || !strings.Contains(all, "holdfast "+v.name+" ") {
			t.Errorf("%s: %v", v.name, r)
		}
		v.flagSet(&settings{}).VisitAll(func(f *flag.Flag) {
			if !strings.Contains(r.stdout, "\n  -"+f.Name) {
				t.Errorf("%s: no word of -%s", v.name, f.Name)
			}
		})
	}
	if r := play(t, "", "help", "rm"); r.status != statusUsage {
		t.Errorf("got %v", r)
	}
}

func TestCompletion(t *testing.T) {
	for shell, part := range map[string]string{"bash": "complete -F", "zsh": "bashcompinit", "fish": "-o label"} {
		r := play(t, "", "completion", shell)
		if r.status != 0 || !strings.Contains(r.stdout, part) {
			t.Errorf("%s: %v", shell, r)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		file := filepath.Join(t.TempDir(), shell)
		if err := os.WriteFile(file, []byte(r.stdout), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(path, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v, %s", shell, err, out)
		}
		if shell != "bash" {
			continue
		}
		for words, want := range map[string]string{
			"holdfast re": "release", "holdfast run -la": "-label", "holdfast run k -- ech": "echo", "holdfast completion f": "fish", "holdfast help wa": "watch", "holdfast ls -ru": "",
		} {
			script := `. "$0"; COMP_WORDS=(` + words + `); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _holdfast; echo "${COMPREPLY[0]}"`
			out, err := exec.Command(path, "-c", script, file).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", words, got, err, want)
			}
		}
	}
	if r := play(t, "", "completion", "csh"); r.status != statusUsage {
		t.Errorf("got %v", r)
	}
}
