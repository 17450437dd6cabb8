package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// recorded are some events of the running code, of owners alone and with limits, that wait, are told, lose the lock and come
// again.
func recorded(t *testing.T) (texts []string) {
	t.Helper()
	file, err := os.Open("testdata/events.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		texts = append(texts, lines.Text())
	}
	return texts
}

// feed returns the first complaint.
func feed(texts []string) error {
	var c Checker
	for _, text := range texts {
		if err := c.Feed(text); err != nil {
			return err
		}
	}
	return nil
}

func TestWhatHappenedIsExplained(t *testing.T) {
	if err := feed(recorded(t)); err != nil {
		t.Error(err)
	}
}

// Whatever else had been left behind, answered or published has no explanation: not one text of an event can be another.
func TestNothingElseIsExplained(t *testing.T) {
	texts := recorded(t)
	changed := 0
	var c Checker
	for i, text := range texts {
		var e map[string]any
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"before", "after", "reply", "told", "failed"} {
			for what, other := range others(e[part]) {
				was := e[part]
				e[part] = other
				text, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				e[part] = was
				changed++
				if read, err := Read(string(text)); err != nil || c.explain(read, "") != nil {
					continue
				}
				// The next call may find it.
				if feed(slices.Concat(texts[:i], []string{string(text)}, texts[i+1:])) == nil {
					t.Errorf("event %d is explained with another %s%s", i+1, part, what)
				}
			}
		}
		if err := c.Feed(text); err != nil {
			t.Fatal(err)
		}
	}
	if t.Logf("%d events, changed in %d ways", len(texts), changed); changed < 20*len(texts) {
		t.Error("that is next to nothing")
	}
}

// others yields value with one of the texts within it changed, added to or left out.
func others(value any) map[string]any {
	all := map[string]any{}
	switch v := value.(type) {
	case nil:
		all[" that was not there"] = "1"
	case string:
		all[", longer: "+v] = v + "1"
		if end := v[max(0, len(v)-3):]; strings.Trim(end, "0123456789") == "" && len(v) > 3 {
			all[", three more: "+v] = v[:len(v)-3] + fmt.Sprintf("%03d", (int(end[0]-'0')*100+int(end[1]-'0')*10+int(end[2]-'0')+3)%1000)
		}
	case []any:
		for i, part := range v {
			for what, other := range others(part) {
				c := slices.Clone(v)
				c[i] = other
				all[fmt.Sprint("[", i, "]", what)] = c
			}
			all[fmt.Sprint(" without ", i)] = slices.Delete(slices.Clone(v), i, i+1)
		}
	case map[string]any:
		for name, part := range v {
			for what, other := range others(part) {
				c := maps.Clone(v)
				c[name] = other
				all["."+name+what] = c
			}
			if part != "0" { // as the end of what is not there
				c := maps.Clone(v)
				delete(c, name)
				all[" without "+name] = c
			}
		}
	}
	return all
}

func TestWhatIsMissingIsNotExplained(t *testing.T) {
	texts := recorded(t)
	for i := range len(texts) - 1 {
		if feed(slices.Delete(slices.Clone(texts), i, i+1)) == nil {
			t.Errorf("nobody misses event %d", i+1)
		}
		if feed(slices.Concat(texts[:i], []string{texts[i+1], texts[i]}, texts[i+2:])) == nil {
			t.Errorf("events %d and %d may come in either order", i+1, i+2)
		}
	}
}

// A server that numbers from 1 anew has forgotten everything, and a lock that somebody else has changed is unknown.
func TestChangesFromOutside(t *testing.T) {
	texts := recorded(t)
	if err := feed(slices.Concat(texts[:5], texts)); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	for _, outside := range []string{Outside("k"), Outside()} {
		for i := range texts {
			if err := feed(slices.Concat(texts[:i], []string{outside}, texts[i:])); err != nil {
				t.Errorf("%s before event %d: %v", outside, i+1, err)
			}
		}
	}
	lost := strings.Replace(texts[5], `"n":"6"`, `"n":"1"`, 1)
	if feed(append(texts[:5:5], lost)) == nil {
		t.Error("a server that has forgotten everything has kept a lock")
	}
	if err := feed(append(texts[:5:5], Outside("other"), lost)); err == nil {
		t.Error("another lock was changed from outside, and that explains it")
	}
}

// What cannot be read is an error that says so.
func TestWhatIsNoEvent(t *testing.T) {
	for _, text := range []string{"", "{}", `{"call":"vote","n":"1"}`, "[1]", "null"} {
		if feed([]string{text}) == nil {
			t.Errorf("%q is an event", text)
		}
	}
}

// An event that is not explained is told with what it found, what the rules lead to, and what happened.
func TestComplaint(t *testing.T) {
	texts := recorded(t)
	texts[0] = strings.Replace(texts[0], `"reply":["9`, `"reply":["8`, 1)
	err := feed(texts)
	if err == nil {
		t.Fatal("no complaint")
	}
	for _, want := range []string{"event 1, at ", "acquire of k by ", "the rules do not lead to what happened", "reply: [\"8", "it finds\n\tnothing", "the rules lead to\n\tlock: ", "and what happened is\n\tlock: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %q", err, want)
		}
	}
}
