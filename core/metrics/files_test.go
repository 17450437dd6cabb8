package metrics_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/metrics"
)

var (
	ruleExpr  = regexp.MustCompile(`(?m)^ +expr: (.+(?:\n {10,}.+)*)`) // on one line or, after "|", on several
	inQuotes  = regexp.MustCompile(`"[^"]*"`)
	metric    = regexp.MustCompile(`\bholdfast_\w+`)
	selector  = regexp.MustCompile(`(\bholdfast_\w+)\{([^}]*)\}`)
	matcher   = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
	aggregate = regexp.MustCompile(`\bby \(([^)]*)\)`)
	labelOf   = regexp.MustCompile(`\{\{ *(?:\$labels\.)?(\w+) *\}\}`)
)

// exported are the labels of each series that a Collector exports, those of Prometheus included, and the values of reason.
func exported(t *testing.T) (labels map[string][]string, reasons []string) {
	m := metrics.New()
	m.Trace().Waiting(holdfast.Event{Key: "order:1"})
	labels = map[string][]string{}
	for series := range gather(t, m) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		labels[name] = []string{"job", "instance"}
		for label := range strings.SplitSeq(rest, ",") {
			label, value, _ := strings.Cut(label, "=")
			labels[name] = append(labels[name], label)
			if label == "reason" {
				reasons = append(reasons, value)
			}
		}
	}
	labels["holdfast_acquire_seconds_bucket"] = append(labels["holdfast_acquire_seconds_count"], "le")
	return labels, reasons
}

// breaches are what an expression, and a text that shows its result, mention and no Collector exports.
func breaches(t *testing.T, expr, text string) (all []string) {
	labels, reasons := exported(t)
	names := metric.FindAllString(inQuotes.ReplaceAllString(expr, ""), -1)
	if len(names) == 0 {
		return []string{"no series"}
	}
	for _, name := range names {
		if labels[name] == nil {
			all = append(all, "series "+name)
		}
	}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(labels[s[1]], m[1]) {
				all = append(all, "label "+m[1]+" of "+s[1])
			}
			if m[1] == "reason" && !slices.Contains(reasons, m[3]) {
				all = append(all, "reason "+m[3])
			}
		}
	}
	kept := map[string]bool{}
	for _, by := range aggregate.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(by[1], ",") {
			label = strings.TrimSpace(label)
			kept[label] = true
			for _, name := range names {
				if !slices.Contains(labels[name], label) {
					all = append(all, "label "+label+" of "+name)
				}
			}
		}
	}
	for _, l := range labelOf.FindAllStringSubmatch(text, -1) {
		if !kept[l[1]] {
			all = append(all, "label "+l[1]+" of the result")
		}
	}
	return all
}

func TestAlertsNameWhatIsExported(t *testing.T) {
	rules, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	exprs := ruleExpr.FindAllStringSubmatchIndex(string(rules), -1)
	if n := strings.Count(string(rules), "- alert:"); n == 0 || len(exprs) != n {
		t.Fatalf("found %d expressions of %d rules", len(exprs), n)
	}
	for i, e := range exprs {
		end := len(rules)
		if i+1 < len(exprs) {
			end = exprs[i+1][0]
		}
		for _, breach := range breaches(t, string(rules[e[2]:e[3]]), string(rules[e[3]:end])) {
			t.Errorf("%s: no %s", rules[e[2]:e[3]], breach)
		}
	}
}

func TestDashboardShowsWhatIsExported(t *testing.T) {
	file, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Templating struct {
			List []struct{ Type, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(file, &dashboard); err != nil {
		t.Fatal(err)
	}
	shown := ""
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s: nothing to show", p.Title)
		}
		for _, target := range p.Targets {
			shown += target.Expr
			for _, breach := range breaches(t, target.Expr, target.LegendFormat) {
				t.Errorf("%s: %s: no %s", p.Title, target.Expr, breach)
			}
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			for _, breach := range breaches(t, v.Definition, "") {
				t.Errorf("%s: no %s", v.Definition, breach)
			}
		}
	}
	labels, _ := exported(t)
	for name := range labels {
		if !strings.HasSuffix(name, "_sum") && !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// The check itself finds what is wrong.
func TestBreaches(t *testing.T) {
	for expr, want := range map[string]string{
		`sum by (job, resource) (holdfast_waiting)`:                     "",
		`rate(holdfast_acquire_seconds_bucket{le="1"}[5m])`:             "",
		`rate(holdfast_wait_seconds_count[5m])`:                         "series holdfast_wait_seconds_count",
		`holdfast_held{key="a"}`:                                        "label key of holdfast_held",
		`holdfast_refused_total{reason="full"}`:                         "reason full",
		`sum by (reason) (holdfast_lost_total)`:                         "label reason of holdfast_lost_total",
		`up{job="holdfast_held"}`:                                       "no series",
		`sum by (job) (holdfast_held) / sum by (le) (holdfast_waiting)`: "label le of holdfast_held, label le of holdfast_waiting",
	} {
		if got := strings.Join(breaches(t, expr, ""), ", "); got != want {
			t.Errorf("%s: got %q, want %q", expr, got, want)
		}
	}
	if got := breaches(t, `sum by (job) (holdfast_held)`, "{{ $labels.resource }} of {{job}}"); !slices.Equal(got, []string{"label resource of the result"}) {
		t.Errorf("got %q, want the label resource alone", got)
	}
}

func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool in PATH: the rules were not tried out")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "testdata/alerts_test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
