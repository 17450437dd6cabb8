package page

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// screenshotEnv names a file that the test of the page writes a picture to. The one that the README shows, from the
// directory of the tour:
//
//	HOLDFAST_BROWSER=1 HOLDFAST_SCREENSHOT=$PWD/serve.png go test -count=1 -run InABrowser ./internal/page
const screenshotEnv = "HOLDFAST_SCREENSHOT"

// places is where everything on the page is, and how high.
const places = `Object.fromEntries([...document.querySelectorAll("section, section .row, section .buttons, h2, ol, #how")].map((e, i) =>
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
		/^2 of 2In line\d+ \(replica-.*First lease\d\.\d s left$/.test(document.querySelector("[aria-label=payments] dl").textContent.slice("Holders".length))`)
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

	for _, width := range []int{400, 320} {
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

// photograph shows a refused write, and a replica that is paused while others go on.
func (b *browser) photograph(file string) {
	b.t.Helper()
	b.click("Pause replica-2")
	b.until("it is paused", `document.querySelector("[data-replica=replica-2]").dataset.state === "paused"`)
	b.until("others have its locks", `picture.lanes[1].rows.every(r => !r.token || picture.products.find(p => p.name === r.product).fence > r.token) &&
		picture.lanes.some(l => l.state === "running" && l.rows.some(r => r.phase === "held"))`)
	var height int
	b.eval(`scrollTo(0, 0), Math.ceil(document.querySelector("#products").getBoundingClientRect().bottom) + 12`, &height)
	b.size(1100, height)
	var shot struct{ Data string }
	b.must("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil && len(png) > 200_000 {
		err = fmt.Errorf("%d bytes", len(png))
	}
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
	b.click("Resume replica-2")
}
