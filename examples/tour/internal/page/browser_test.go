package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// browser is a Chromium without a window, driven by the DevTools protocol over a pair of pipes: that takes no port, and
// no library. One call at a time.
type browser struct {
	t       *testing.T
	in      *os.File // commands; each ends in a NUL, as does each reply
	out     *os.File
	replies *bufio.Reader
	session string // of the page
	last    int
	errors  []string // of scripts, and what the page's policy kept out
}

// startBrowser skips the test where there is no browser, or none that can run here.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	if os.Getenv("HOLDFAST_BROWSER") == "" { // make check sets it: what a browser does takes as long as it takes
		t.Skip("HOLDFAST_BROWSER is not set: the page was not looked at in a browser")
	}
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("neither chromium nor google-chrome is installed: the page was not looked at in a browser")
	}
	// Not t.TempDir, which fails the test where a process of the browser still writes.
	dir, err := os.MkdirTemp("", "holdfast-browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	args := []string{
		"--headless", "--remote-debugging-pipe", "--user-data-dir=" + dir, "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
		"--disable-dev-shm-usage", "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--force-color-profile=srgb", "--hide-scrollbars", "about:blank",
	}
	if os.Geteuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...) // it refuses to be root with one
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4, where it expects them
	var stderr output
	cmd.Stderr = &stderr
	cmd.WaitDelay = 10 * time.Second // for processes of it that keep stderr open
	err = cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		t.Skipf("%s does not start here: %v", program, err)
	}
	b := &browser{t: t, in: in, out: out, replies: bufio.NewReaderSize(out, 1<<20)}
	t.Cleanup(func() {
		if err := b.call("Browser.close", nil, nil); err != nil {
			_ = cmd.Process.Kill()
		}
		in.Close()
		out.Close()
		late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		_ = cmd.Wait()
	})

	var target struct{ TargetID string }
	if err := b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		t.Skipf("%s does not run here: %v\n%s", program, err, stderr.String())
	}
	var attached struct{ SessionID string }
	b.must("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.must(domain+".enable", nil, nil)
	}
	return b
}

// call sends a command and waits for its result.
func (b *browser) call(method string, params, result any) error {
	b.last++
	if params == nil {
		params = struct{}{}
	}
	command := map[string]any{"id": b.last, "method": method, "params": params}
	if b.session != "" && !strings.HasPrefix(method, "Browser.") {
		command["sessionId"] = b.session
	}
	data, err := json.Marshal(command)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patient)
	_ = b.in.SetWriteDeadline(deadline)
	_ = b.out.SetReadDeadline(deadline)
	if _, err := b.in.Write(append(data, 0)); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		data, err := b.replies.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		var reply struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(data[:len(data)-1], &reply); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		switch {
		case reply.Method == "Runtime.exceptionThrown", reply.Method == "Log.entryAdded" && strings.Contains(string(reply.Params), `"error"`):
			b.errors = append(b.errors, string(reply.Params))
		case reply.ID != b.last:
		case reply.Error != nil:
			return fmt.Errorf("%s: %s", method, reply.Error.Message)
		case result != nil:
			return json.Unmarshal(reply.Result, result)
		default:
			return nil
		}
	}
}

func (b *browser) must(method string, params, result any) {
	b.t.Helper()
	if err := b.call(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// eval runs a script in the page and takes its value.
func (b *browser) eval(script string, value any) {
	b.t.Helper()
	var result struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.must("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true}, &result)
	if result.ExceptionDetails != nil {
		b.t.Fatalf("%s\n%s", script, result.ExceptionDetails)
	}
	if value != nil {
		if err := json.Unmarshal(result.Result.Value, value); err != nil {
			b.t.Fatalf("%s: %v: %s", script, err, result.Result.Value)
		}
	}
}

// until waits for a script to be true.
func (b *browser) until(what, script string) {
	b.t.Helper()
	b.t.Logf("until %s", what)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var is bool
		if b.eval("Boolean("+script+")", &is); is {
			return
		}
		if time.Since(began) > patient {
			var text string
			b.eval("document.body.innerText", &text)
			b.t.Fatalf("it does not show:\n%s", text)
		}
	}
}

// click presses a button with the mouse, where it is on the screen, when it can be pressed.
func (b *browser) click(label string) {
	b.t.Helper()
	button := fmt.Sprintf(`[...document.querySelectorAll("button")].find(e => (e.getAttribute("aria-label") || e.textContent) === %q)`, label)
	b.until(label, button+`?.getAttribute("aria-disabled") !== "true"`)
	var at struct{ X, Y float64 }
	b.eval(fmt.Sprintf(`(() => {
		const e = %s;
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		return {x: r.x + r.width / 2, y: r.y + r.height / 2};
	})()`, button), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.must("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
	}
}
