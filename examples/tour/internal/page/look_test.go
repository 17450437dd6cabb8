package page

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// screenshotEnv names a file that the test of the page writes a picture to. The one that the README shows, from the
// directory of the tour:
//
//	HOLDFAST_BROWSER=1 HOLDFAST_SCREENSHOT=$PWD/serve.png go test -count=1 -run InABrowser ./internal/page
const screenshotEnv = "HOLDFAST_SCREENSHOT"

// places is where everything on the page is, and how high.
const places = `Object.fromEntries([...document.querySelectorAll("section, section .row, section .hand, section .buttons, section p, h2, ol, #how")].map((e, i) =>
	[i, [Math.round(e.getBoundingClientRect().top + scrollY), Math.round(e.getBoundingClientRect().height)].join()]))`

func (b *browser) size(width, height int) {
	b.t.Helper()
	b.must("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
	}, nil)
}

func (b *browser) prefer(feature, value string) {
	b.t.Helper()
	b.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": feature, "value": value}}}, nil)
}

func TestPageInABrowser(t *testing.T) {
	t.Parallel()
	if !shop.CanStop {
		t.Skip("no SIGSTOP here")
	}
	b := startBrowser(t)
	l := quick
	l.lease = 10 * time.Second // what is taken by hand must not be lost on a busy machine
	picture := os.Getenv(screenshotEnv)
	if picture != "" {
		l = liveDefaults()
	}
	s := startShow(t, l, "", 3, 3)
	b.size(1100, 900)
	b.prefer("prefers-color-scheme", "light")
	b.must("Page.navigate", map[string]any{"url": s.url}, nil)

	b.until("a bar for a lease", `[...document.querySelectorAll("[data-phase=held] .bar")].some(e => e.getBoundingClientRect().width > 0)`)
	b.until("two payments, and one that waits", `[...document.querySelectorAll("[data-phase=held] .says")].some(e => e.textContent.endsWith("left, waits to pay")) &&
		/^Taken2 of 2 placesByreplica-.*In line\d+: replica-.*Leasethe first ends in \d\.\d s$/.test(document.querySelector("[aria-label=payments] dl").textContent)`)
	var before, after map[string]string
	b.eval(places, &before)
	b.click("Pause replica-1")
	b.until("it is paused", `document.querySelector("[data-replica=replica-1]").dataset.state === "paused"`)
	b.until("its locks have passed on", `picture.lanes[0].rows.every(r => !r.token || picture.products.find(p => p.name === r.product).fence > r.token)`)
	b.until("its lane stands where it was paused, though the leases are over by now", `(() => {
		const bars = document.querySelectorAll("[data-replica=replica-1] .bar"), l = picture.lanes[0];
		return l.rows.every((r, i) => r.phase !== "held" ||
			Math.abs(parseFloat(bars[i].style.transform.slice(7)) - Math.min(1, Math.max(0, (r.until || 0) - l.pausedAt) / picture.lease)) < 0.01);
	})()`)
	b.click("Resume replica-1")
	b.until("the refused write", `[...document.querySelectorAll("#refusals li")].some(e => e.textContent.includes("replica-1") && e.textContent.includes("refused"))`)
	b.eval(places, &after)
	if !maps.Equal(before, after) || len(before) < 20 {
		t.Errorf("the page jumped from %v to %v", before, after)
	}
	if picture != "" {
		b.photograph(picture)
	}
	b.burst()
	if picture == "" {
		b.keyboard()
	}
	b.look()
	b.eval(places, &before)
	// A busy shop soon pushes a line out of the log, so what matters is that it was there.
	b.eval(`window.logged = new Set(), new MutationObserver(changes => {
		for (const c of changes) for (const li of c.addedNodes) logged.add(li.dataset.what);
	}).observe(document.querySelector("#log"), {childList: true})`, nil)
	b.click("Flush Redis")
	b.until("the flush in the log", `logged.has("flushed")`)
	b.click("Kill replica-3")
	b.until("the kill in the log", `logged.has("killed")`)
	if b.eval(places, &after); !maps.Equal(before, after) {
		t.Errorf("the narrow page jumped from %v to %v", before, after)
	}

	s.stop()
	b.until("it says that it is old", `document.querySelector("#link").textContent.startsWith("not connected")`)
	// It goes on trying to connect, and the browser reports each failure.
	for _, e := range b.errors {
		if !strings.Contains(e, "net::ERR_") {
			t.Error(e)
		}
	}
}

// burst checks that a page does not draw each of the pictures that come while it is busy. It would fall behind ever more,
// by half a minute on a busy machine, and be dropped in the end.
func (b *browser) burst() {
	b.t.Helper()
	var drawn int
	b.eval(`(() => {
		const parse = JSON.parse, data = JSON.stringify(picture);
		let shown = 0;
		JSON.parse = text => { if (text === data) shown++; return parse(text); };
		for (let i = 0; i < 100; i++) events.dispatchEvent(new MessageEvent("picture", {data}));
		JSON.parse = parse;
		return shown;
	})()`, &drawn)
	if drawn > 0 {
		b.t.Errorf("the page drew %d pictures of which nobody could see any but the last", drawn)
	}
}

// look checks what does not depend on what is shown.
func (b *browser) look() {
	b.t.Helper()
	var light, dark string
	const ground = `getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color`
	b.eval(ground, &light)
	b.prefer("prefers-color-scheme", "dark")
	if b.eval(ground, &dark); dark == light {
		b.t.Errorf("%s in the dark too", light)
	}

	for _, width := range []int{400, 360, 320} {
		b.size(width, 900)
		var needs int
		if b.eval(`document.documentElement.scrollWidth`, &needs); needs > width {
			b.t.Errorf("at %d pixels it needs %d", width, needs)
		}
	}

	b.prefer("prefers-reduced-motion", "reduce")
	var early []float64 // draws of the time left that came less than a second after the one before: else with each frame
	b.eval(`(async () => {
		const early = [];
		for (let frames = 0, last = drawn; frames < 30; frames++) {
			await new Promise(requestAnimationFrame);
			if (drawn !== last && drawn - last < 1000) early.push(drawn - last);
			last = drawn;
		}
		return early;
	})()`, &early)
	if len(early) > 0 {
		b.t.Errorf("with reduced motion it draws again after %v ms", early)
	}

	var unnamed []string
	b.eval(`[...document.querySelectorAll("button")].filter(e => e.tabIndex < 0 || !(e.getAttribute("aria-label") || e.textContent)).map(e => e.outerHTML)`, &unnamed)
	if len(unnamed) > 0 {
		b.t.Errorf("out of reach of the keyboard, or without a name: %q", unnamed)
	}
}

// focused is the name of what the keyboard is at; none for the page itself.
const focused = `(e => e === document.body ? "" : e.getAttribute("aria-label") || e.textContent)(document.activeElement)`

// press presses a key: Tab, Enter or Space.
func (b *browser) press(name string) {
	b.t.Helper()
	code := map[string]int{"Tab": 9, "Enter": 13, "Space": 32}[name]
	text := map[string]string{"Enter": "\r", "Space": " "}[name]
	key := name
	if name == "Space" {
		key = " "
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		event := map[string]any{"type": kind, "key": key, "code": name, "windowsVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			event["text"] = text
		}
		b.must("Input.dispatchKeyEvent", event, nil)
	}
}

// keyboard operates the page without a mouse.
func (b *browser) keyboard() {
	b.t.Helper()
	var want int
	b.eval(`document.body.tabIndex = -1, document.body.focus(), document.querySelectorAll("button, ol").length`, &want) // from the top
	tab := func(label string, most int) (seen map[string]bool) {
		b.t.Helper()
		seen = map[string]bool{}
		for range most {
			b.press("Tab")
			var at struct {
				Name    string
				Index   int
				Visible bool
			}
			b.eval(`(e => ({name: `+focused+`, index: [...document.querySelectorAll("button, ol")].indexOf(e),
				visible: getComputedStyle(e).outlineStyle !== "none" && parseFloat(getComputedStyle(e).outlineWidth) >= 2}))(document.activeElement)`, &at)
			if at.Index >= 0 {
				seen[fmt.Sprint(at.Index, " ", at.Name)] = true
				if !at.Visible {
					b.t.Errorf("nobody sees that the keyboard is at %q", at.Name)
				}
			}
			if at.Name == label {
				return seen
			}
		}
		if label != "" {
			b.t.Fatalf("Tab does not come to %q, only to %v", label, seen)
		}
		return seen
	}
	if seen := tab("", 2*want); len(seen) != want {
		b.t.Errorf("Tab comes to %d of %d: %v", len(seen), want, seen)
	}
	says := func(panel, text string) string {
		return fmt.Sprintf(`document.querySelector("[aria-label=%s] [aria-live=polite]").textContent === %q`, panel, text)
	}
	for _, step := range []struct{ button, key, panel, says string }{
		{"replica-1: Take", "Enter", "Permits", "1 of 2 permits taken"},
		{"replica-2: Take", "Space", "Permits", "2 of 2 permits taken"},
		{"replica-3: Take", "Enter", "Permits", "2 of 2 permits taken, 1 waits"},
		{"replica-3: Take", "Space", "Permits", "2 of 2 permits taken"},
		{"replica-1: Read", "Space", "Prices", "1 reader"},
		{"replica-2: Write", "Enter", "Prices", "1 reader, a writer waits"},
		{"replica-3: B \u2192 C", "Enter", "Accounts", "1 transfer runs"},
		{"replica-1: A \u2192 B", "Space", "Accounts", "1 transfer runs, 1 waits; a waiting call holds nothing behind the lock it waits for"},
	} {
		tab(step.button, 2*want+5)
		b.press(step.key)
		b.until(step.button, says(step.panel, step.says))
		var at string
		if b.eval(focused, &at); at != step.button {
			b.t.Errorf("the keyboard went from %q to %q", step.button, at)
		}
	}
	b.until("what each does, and what Redis says", `(text => ["has a permit", "reads", "waits to write", "holds B and C", "holds A, waits for B",
		"Redis: 2 of 2, first lease", "Redis: 1 reader, first lease", "A replica-1; B replica-3, 1 in line; C replica-3"].every(t => text.includes(t)))(document.querySelector("#hands").innerText)`)
	var leader string
	b.eval(`picture.terms.at(-1).name`, &leader)
	tab("Kill "+leader, 2*want+5)
	b.press("Enter")
	b.until("another one leads", fmt.Sprintf(`/^replica-\d leads since .*, term [\d\u202f]+; before it %s, which was killed$/.test(document.querySelector("[aria-label=Outbox] [aria-live]").textContent)`, leader))
	var moving []string
	b.eval(`[...document.querySelectorAll("[aria-live], [role=status]")].map(e => e.textContent).filter(t => /\d\.\d s/.test(t))`, &moving)
	if len(moving) > 0 {
		b.t.Errorf("it is read aloud with each tenth of a second: %q", moving)
	}
}

// photograph shows a refused write, and a leader that is paused while others go on.
func (b *browser) photograph(file string) {
	b.t.Helper()
	var i int
	b.eval(`Number(picture.terms.at(-1).name.slice(-1))`, &i)
	paused, next, last := fmt.Sprint("replica-", i), fmt.Sprint("replica-", i%3+1), fmt.Sprint("replica-", (i+1)%3+1)
	for _, act := range []string{
		paused + ": Take", next + ": Take", last + ": Take", next + ": Read", last + ": Write",
		last + ": B \u2192 C", next + ": A \u2192 B",
	} {
		b.click(act)
	}
	b.click("Pause " + paused)
	b.until("it is paused", `document.querySelector("[data-replica=`+paused+`]").dataset.state === "paused"`)
	b.until("another one leads", `picture.terms.at(-1).name !== "`+paused+`"`)
	b.until("others have its locks", fmt.Sprintf(`picture.lanes[%d].rows.every(`, i-1)+`r => !r.token || picture.products.find(p => p.name === r.product).fence > r.token) &&
		picture.lanes.some(l => l.state === "running" && l.rows.some(r => r.phase === "held"))`)
	b.until("nothing was lost on the way", `["1 reader, a writer waits", "holds A, waits for B", "holds B and C"].every(t => document.querySelector("#hands").innerText.includes(t)) &&
		document.querySelector("#trouble").textContent === ""`)
	var height int
	b.eval(`scrollTo(0, 0), Math.ceil(document.querySelector("#hands").getBoundingClientRect().bottom) + 12`, &height)
	b.size(1100, height)
	var shot struct{ Data string }
	b.must("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	var small bytes.Buffer
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = shrink(&small, data)
	}
	if err == nil && small.Len() > 250_000 {
		err = fmt.Errorf("%d bytes", small.Len())
	}
	if err == nil {
		err = os.WriteFile(file, small.Bytes(), 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
	b.click("Resume " + paused)
}

// shrink writes a PNG with 256 colours: those that are there most often, which are enough for text.
func shrink(w io.Writer, data []byte) error {
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return err
	}
	often := map[color.Color]int{}
	for y := range from.Bounds().Dy() {
		for x := range from.Bounds().Dx() {
			often[from.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(often), func(a, b color.Color) int { return often[b] - often[a] })
	to := image.NewPaletted(from.Bounds(), colours[:min(256, len(colours))])
	draw.Draw(to, to.Bounds(), from, image.Point{}, draw.Src)
	return (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(w, to)
}
