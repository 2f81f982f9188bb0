package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// metricRow is a metric of docs/spec/metrics.md, or of a server.
type metricRow struct{ name, kind, labels, meaning string }

// Ensure that docs/spec/metrics.md lists all metrics of a server, with their types, labels and meanings, and no others.
func TestMetricsOfTheDocument(t *testing.T) {
	web := newStorage(t, 20)
	s := configureServed(t, fmt.Sprintf("policy: cost, tiers: [{kind: disk, dir: %q, size: 16MiB}], "+
		"source: {kind: raw, path: %q, sample_bytes: %d}}, "+
		"{name: planned, dir: SEGMENTS, policy: planned, source: {kind: raw, path: records, sample_bytes: %[3]d}}, "+
		"{name: arena, dir: SEGMENTS, policy: lru, size: 8MiB, source: {kind: dir, path: files}",
		t.TempDir(), web.URL+"/records", servedBytes))
	s.configure(strings.ReplaceAll(s.configuration("", ""), "SEGMENTS", s.segments))
	s.write(20)
	files := filepath.Join(filepath.Dir(s.path), "files")
	fatal.If(t, os.Mkdir(files, 0o700))
	for i := range 3 {
		fatal.If(t, os.WriteFile(filepath.Join(files, fmt.Sprint(i)), servedRecord(i)[:100*(i+1)], 0o600))
	}
	s.start()
	wantFetch(t, s.dial(), first(10))
	fatal.Until(t, "the tier has its file", func() bool { return strings.Contains(s.answers("/metrics"), "stocached_tier_left_out") })
	got, want := metricsOf(s.answers("/metrics")), documentedMetrics(t)
	for _, row := range got {
		if !slices.Contains(want, row) {
			t.Errorf("the document lacks\n| `%s` | %s | %s | %s |", row.name, row.kind, row.labels, row.meaning)
		}
	}
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("the server lacks %+v", row)
		}
	}
}

var documentedMetric = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*) \\| ([^|]*) \\|$")

func documentedMetrics(t *testing.T) (rows []metricRow) {
	text := fatal.Value(os.ReadFile("../../docs/spec/metrics.md"))(t)
	for _, m := range documentedMetric.FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, metricRow{m[1], m[2], m[3], m[4]})
	}
	return rows
}

// metricsOf reads what a server answers.
func metricsOf(text string) (rows []metricRow) {
	for _, part := range strings.Split("\n"+text, "\n# HELP ")[1:] {
		name, rest, _ := strings.Cut(part, " ")
		meaning, rest, _ := strings.Cut(rest, "\n")
		kind, samples, _ := strings.Cut(strings.TrimPrefix(rest, "# TYPE "+name+" "), "\n")
		labels := []string{}
		for _, m := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(samples, -1) {
			if m[1] != "le" && !slices.Contains(labels, m[1]) {
				labels = append(labels, m[1])
			}
		}
		slices.Sort(labels)
		rows = append(rows, metricRow{name, kind, strings.Join(labels, ", "), meaning})
	}
	return rows
}
