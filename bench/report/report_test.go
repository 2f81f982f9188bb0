package report

import (
	"slices"
	"strings"
	"testing"
)

func TestSpreadOf(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{9, 1, 2}, Spread{1, 2, 9}},
		{[]float64{4, 1, 3, 2}, Spread{1, 2.5, 4}},
	} {
		if got := SpreadOf(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}

// Ratios compare neighbouring runs, and their median decides.
func TestJudge(t *testing.T) {
	gather := Measurement{Case: "c/gather", Size: "image", Subjects: []Subject{
		{Name: "gather", Value: []float64{10, 10, 10}},
		{Name: "memcpy loop", Value: []float64{8, 9.5, 90}}, // 0.8, 0.95, 9
		{Name: "gather 2 threads", Value: []float64{9, 9, 9}},
		{Name: "memcpy loop 2 threads", Value: []float64{9, 9, 9}},
	}}
	view := Measurement{Case: "go/view", Size: "image", Subjects: []Subject{
		{Name: "View", Value: []float64{30e-9, 26e-9, 20e-9}},
		{Name: "bare lookup, counted", Value: []float64{10e-9, 10e-9, 10e-9}},
	}}
	get := Measurement{Case: "go/get", Missing: "because"}
	verdicts, err := Judge(Requirements, []Measurement{gather, view, get}, true)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"c/gather gather memcpy loop":                     "reached",
		"c/gather gather 2 threads gather":                "reached otherwise",
		"c/gather gather 2 threads memcpy loop 2 threads": "reached",
		"go/view View ":                                   "not reached",
		"go/view View bare lookup, counted":               "shown",
		"go/get Get copy":                                 "not measured: because",
		"c/view stoc_view ":                               "not measured: not run",
	}
	for _, v := range verdicts {
		name := strings.Join([]string{v.Case, v.Ours, v.Base}, " ")
		if result, ok := want[name]; ok && result != v.Result {
			t.Errorf("%s: %q, want %q", name, v.Result, result)
		}
		delete(want, name)
		if name == "c/gather gather memcpy loop" && v.Ratio != (Spread{0.8, 0.95, 9}) {
			t.Errorf("ratio %v", v.Ratio)
		}
	}
	for name := range want {
		t.Errorf("no verdict on %s", name)
	}
}

// A missing subject is an error, unless peers were left out.
func TestJudgeSubjects(t *testing.T) {
	m := []Measurement{{Case: "python/view", Size: "image",
		Subjects: []Subject{{Name: "Cache.get", Value: []float64{1}}}}}
	if _, err := Judge(Requirements, m, true); err == nil || !strings.Contains(err.Error(), "stocaching get_slot") {
		t.Errorf("with peers: %v", err)
	}
	if _, err := Judge(Requirements, m, false); err != nil {
		t.Error(err)
	}
}

func TestStream(t *testing.T) {
	var all []Measurement
	var other []string
	text := "hello\n{\"case\":\"a\",\"subjects\":[{\"name\":\"x\",\"value\":[1,2]}]}\n"
	if err := Stream(strings.NewReader(text), func(m Measurement) { all = append(all, m) },
		func(l string) { other = append(other, l) }); err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Case != "a" || len(other) != 1 || other[0] != "hello" {
		t.Errorf("%v %v", all, other)
	}
	for _, bad := range []string{"{", `{"case":"a","subjects":[{"name":"x","value":[]}]}`,
		`{"case":"a","subjects":[{"name":"x","value":[1]},{"name":"y","value":[1,2]}]}`,
		`{"case":"a","subjects":[{"name":"x","value":[0]}]}`} {
		if err := Stream(strings.NewReader(bad), func(Measurement) {}, func(string) {}); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestTime(t *testing.T) {
	for seconds, want := range map[float64]string{0: "", 15e-9: "15.0 ns", 1.234e-6: "1.23 us", 999.9e-9: "1.00 us",
		0.0123: "12.3 ms", 2: "2.00 s", 0.1e-9: "0.100 ns"} {
		if got := Time(seconds); got != want {
			t.Errorf("%g: %q, want %q", seconds, got, want)
		}
	}
}

// One of two alternatives is enough, and both together count once.
func TestCount(t *testing.T) {
	group := func(results ...bool) Result {
		var r Result
		for _, reached := range results {
			r.Verdicts = append(r.Verdicts,
				Verdict{Row: "r", Case: "c", Reached: reached,
					Result: map[bool]string{true: "reached", false: "not reached"}[reached], or: "x"})
		}
		return r
	}
	for _, c := range []struct {
		results     []bool
		reached, of int
	}{{[]bool{true, true}, 1, 1}, {[]bool{false, false}, 0, 1}} {
		r := group(c.results...)
		if reached, of, _ := r.count("r"); reached != c.reached || of != c.of {
			t.Errorf("%v: %d of %d", c.results, reached, of)
		}
	}
}

func TestFile(t *testing.T) {
	r := Result{Date: "2026-11-21 11:00", Description: "Intel(R) Xeon(R) Processor @ 2.50GHz"}
	if got := r.File(); got != "2026-11-21-intel-xeon-processor-2.50ghz.json.gz" {
		t.Error(got)
	}
	r.Group, r.Partial = "server", true // must not replace a whole one
	if got := r.File(); got != "2026-11-21-intel-xeon-processor-2.50ghz-server-partial.json.gz" {
		t.Error(got)
	}
}

// A bound does not count. It marks a missed requirement as impossible on this machine.
func TestBound(t *testing.T) {
	m := Measurement{Case: "c",
		Subjects: []Subject{{Name: "ours", Value: []float64{7, 8}}, {Name: "least", Value: []float64{6, 6}},
			{Name: "base", Value: []float64{2, 2}}}}
	for need, want := range map[float64]string{3.5: "",
		2.5: "; cannot be reached on this machine: *least*, the least that must be done, has 3.00"} {
		verdicts, err := Judge([]Requirement{{Row: "r", Case: "c", Ours: "ours", Base: "base", Sense: Within,
			Need: need},
			{Row: "r", Case: "c", Ours: "least", Base: "base", Sense: Within, Need: need, Bound: true}},
			[]Measurement{m}, true)
		if err != nil {
			t.Fatal(err)
		}
		r := Result{Verdicts: verdicts}
		reached, of, missed := r.count("r")
		if reached != 0 || of != 1 || len(missed) != 1 || !strings.HasSuffix(missed[0], want+")") ||
			(want == "") == strings.Contains(missed[0], "cannot") {
			t.Errorf("need %g: %d of %d, %q", need, reached, of, missed)
		}
	}
}

// Above compares differences, which may be negative.
func TestAbove(t *testing.T) {
	m := Measurement{Case: "c", Subjects: []Subject{{Name: "ours", Value: []float64{70e-6, 30e-6, 90e-6}},
		{Name: "base", Value: []float64{50e-6, 50e-6, 50e-6}}}}
	verdicts, err := Judge([]Requirement{{Row: "r", Case: "c", Ours: "ours", Base: "base", Sense: Above, Need: 30e-6,
		Unit: "us"}}, []Measurement{m}, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := verdicts[0].Line(), "20.0 us (-20.0 us to 40.0 us; at most 30.0 us more): reached"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A page of an old run lacks the rows that came later.
func TestRowsThatCameLater(t *testing.T) {
	r := Result{Verdicts: []Verdict{{Row: "fill", Result: "reached"}, {Row: "fill", Result: notRun},
		{Row: "later", Result: notRun}, {Row: "failed", Result: "not measured: no disk"}}}
	if rows := r.rows(); !slices.Equal(rows, []string{"fill", "failed"}) {
		t.Errorf("rows %v", rows)
	}
}
