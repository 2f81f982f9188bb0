package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// metric is a metric of a server.
type metric struct {
	kind   string // counter, gauge or histogram
	labels map[string]bool
}

// documented reads docs/spec/metrics.md, which a test of internal/cli compares with a server. Prometheus itself adds
// job and instance.
func documented(t *testing.T) (metrics map[string]metric) {
	t.Helper()
	metrics = map[string]metric{"up": {"gauge", map[string]bool{"job": true, "instance": true}}}
	text := fatal.Value(os.ReadFile(top + "/docs/spec/metrics.md"))(t)
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*) \\|")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		labels := map[string]bool{"job": true, "instance": true}
		for name := range strings.SplitSeq(m[3], ", ") {
			labels[name] = true
		}
		if m[2] != "histogram" {
			metrics[m[1]] = metric{m[2], labels}
			continue
		}
		labels["le"] = true
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			metrics[m[1]+part] = metric{"counter", labels}
		}
	}
	if len(metrics) < 15 || metrics["stocached_hits_total"].kind != "counter" {
		t.Fatalf("%v", metrics)
	}
	return metrics
}

// wantQuery parses a query like Prometheus. Its metrics and labels must exist, and rates must be of
// counters. It returns the metrics.
func wantQuery(t *testing.T, where, query string, metrics map[string]metric) (asked []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v in %s", where, err, query)
		return nil
	}
	labels := map[string]bool{} // labels of all metrics in the query
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		m, known := metrics[v.Name]
		if !known {
			t.Errorf("%s: the server has no metric %q: %s", where, v.Name, query)
			return nil
		}
		asked = append(asked, v.Name)
		for l := range m.labels {
			labels[l] = true
		}
		for _, l := range v.LabelMatchers {
			if l.Name != "__name__" && !m.labels[l.Name] {
				t.Errorf("%s: %s has no label %q: %s", where, v.Name, l.Name, query)
			}
		}
		rated := false
		for _, above := range path {
			if call, ok := above.(*parser.Call); ok && slices.Contains([]string{"rate", "irate", "increase"}, call.Func.Name) {
				rated = true
			}
		}
		if rated != (m.kind == "counter") {
			t.Errorf("%s: %s is a %s; rates are of counters, and counters are shown as rates: %s", where, v.Name, m.kind, query)
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !labels[l] {
					t.Errorf("%s: nothing in it has the label %q: %s", where, l, query)
				}
			}
		}
		return nil
	})
	return asked
}

// rules is a file of alert rules.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr         string
			For                 model.Duration
			Labels, Annotations map[string]string
		}
	}
}

// strictly decodes YAML and refuses unknown keys.
func strictly(t *testing.T, path string, v any) (text string) {
	t.Helper()
	b := fatal.Value(os.ReadFile(path))(t)
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(b)
}

// Ensure that the alert rules use existing metrics, and their texts existing labels. For each alert, the
// file for promtool has a case in which it fires and one in which it does not.
func TestAlerts(t *testing.T) {
	metrics := documented(t)
	var all rules
	strictly(t, "../prometheus/alerts.yaml", &all)
	tests := fatal.Value(os.ReadFile("../prometheus/alerts_test.yaml"))(t)
	same := func(v float64) string { return fmt.Sprint(v) }
	functions := template.FuncMap{"humanize": same, "humanizeDuration": same, "humanizePercentage": same}
	alerts := 0
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			alerts++
			labels := map[string]string{}
			for _, name := range wantQuery(t, r.Alert, r.Expr, metrics) {
				for l := range metrics[name].labels {
					labels[l] = "some"
				}
			}
			for _, annotation := range []string{"summary", "description"} {
				var text strings.Builder
				parsed, err := template.New(r.Alert).Funcs(functions).Option("missingkey=error").Parse("{{$labels := .Labels}}{{$value := .Value}}" + r.Annotations[annotation])
				if err == nil {
					err = parsed.Execute(&text, map[string]any{"Labels": labels, "Value": 1.5})
				}
				if err != nil || text.Len() < 20 {
					t.Errorf("%s, %s: %q, %v", r.Alert, annotation, text.String(), err)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
			}
			if n := len(regexp.MustCompile(`alertname: `+r.Alert+`\b`).FindAll(tests, -1)); n < 2 {
				t.Errorf("%s is in alerts_test.yaml %d times: it must be seen to fire, and not to", r.Alert, n)
			}
		}
	}
	if alerts < 5 {
		t.Errorf("%d alerts", alerts)
	}
}

// dashboard holds the parts of a Grafana dashboard that this test checks.
type dashboard struct {
	Title      string
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ Expr, LegendFormat string }
		Datasource               struct{ UID string }
		FieldConfig              struct{ Defaults struct{ Unit string } }
	}
}

// Ensure that the dashboard's queries are valid and use existing metrics, that it shows each
// metric, and that no panels overlap.
func TestDashboard(t *testing.T) {
	metrics := documented(t)
	text := fatal.Value(os.ReadFile("../grafana/stocached.json"))(t)
	var d dashboard
	fatal.If(t, json.Unmarshal(text, &d))
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		query, isQuery := v.Query.(map[string]any)
		if !isQuery {
			continue
		}
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(fmt.Sprint(query["query"]))
		if m == nil {
			t.Errorf("variable %s: %v", v.Name, query["query"])
			continue
		}
		for _, name := range wantQuery(t, "variable "+v.Name, fill(m[1]), metrics) {
			if !metrics[name].labels[m[2]] {
				t.Errorf("variable %s: %s has no label %s", v.Name, name, m[2])
			}
		}
	}
	shown, ids := map[string]bool{}, map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %q: its id %d is another one's too", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q, or beside the page", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Description == "" || p.FieldConfig.Defaults.Unit == "" ||
			p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q: %d queries, unit %q, data source %q, description %q", p.Title, len(p.Targets),
				p.FieldConfig.Defaults.Unit, p.Datasource.UID, p.Description)
		}
		for _, target := range p.Targets {
			for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !variables[m[1]] {
					t.Errorf("panel %q: there is no variable %q", p.Title, m[1])
				}
			}
			asked := wantQuery(t, p.Title, fill(target.Expr), metrics)
			for _, name := range asked {
				shown[name] = true
			}
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				for _, name := range asked {
					if !metrics[name].labels[m[1]] {
						t.Errorf("panel %q: its legend has the label %q, and %s has not", p.Title, m[1], name)
					}
				}
			}
		}
	}
	seldom := regexp.MustCompile(`^(process|stocached_remote|stocached_side_buffer)_`) // the process's, and what few caches have
	for name := range metrics {
		if !shown[name] && !seldom.MatchString(name) {
			t.Errorf("%s is on no panel", name)
		}
	}
}

// fill replaces a dashboard's variables by values, like Grafana.
func fill(query string) string {
	return regexp.MustCompile(`\$\{?\w+\}?`).ReplaceAllStringFunc(query, func(v string) string {
		if v == "$__rate_interval" {
			return "1m"
		}
		return ".+"
	})
}

// Ensure that the example for Prometheus is YAML with the rules beside it and the job of the
// alerts.
func TestExample(t *testing.T) {
	var c struct {
		Global        map[string]string `yaml:"global"`
		RuleFiles     []string          `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string                `yaml:"job_name"`
			StaticConfigs []map[string][]string `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	text := strictly(t, "../prometheus/prometheus.yaml", &c)
	if len(c.RuleFiles) != 1 || len(c.ScrapeConfigs) != 1 || len(c.ScrapeConfigs[0].StaticConfigs) != 1 {
		t.Fatalf("%+v", c)
	}
	rules, err := os.ReadFile(filepath.Join("../prometheus", c.RuleFiles[0]))
	if err != nil || !strings.Contains(string(rules), fmt.Sprintf("job=%q", c.ScrapeConfigs[0].JobName)) {
		t.Errorf("job %q, %v", c.ScrapeConfigs[0].JobName, err)
	}
	if target := c.ScrapeConfigs[0].StaticConfigs[0]["targets"][0]; !strings.Contains(text, fmt.Sprintf("metrics: {listen: %q}", target)) {
		t.Errorf("nothing answers on %s", target)
	}
}

// Ensure that promtool, if it is installed, accepts all files, and that each alert fires exactly
// when it must.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if promtool, err = filepath.Abs("../../.tools/promtool"); err == nil {
			_, err = os.Stat(promtool)
		}
	}
	if err != nil {
		t.Skip("promtool is not installed (tools/setup.sh promtool; it is in the package prometheus of Debian and Ubuntu): alerts are parsed, and not let fire")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"check", "config", "prometheus.yaml"},
		{"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "../prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
