// Package report turns measurements of any program into verdicts: ratios against requirements, with
// their spread.
//
// The measuring programs (Go here, C in ../c, Python in ../python) print one Measurement a line as
// JSON, and know no requirements; requirement.go has all of them in one table.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Measurement is one case: its subjects, run in turn and equally often.
type Measurement struct {
	Case     string    `json:"case"`           // such as "python/gather"
	Size     string    `json:"size,omitempty"` // of the samples: image, small or large; "" where it does not matter
	Note     string    `json:"note,omitempty"` // what a reader must know about the numbers
	Missing  string    `json:"missing,omitempty"`
	Subjects []Subject `json:"subjects,omitempty"`
}

// Subject is one of the things that are compared. Run k of a subject lies between runs k-1 and k+1
// of every other one.
type Subject struct {
	Name    string    `json:"name"`
	Unit    string    `json:"unit,omitempty"` // of Value. "": seconds a sample
	Samples int       `json:"samples"`        // in a run
	Value   []float64 `json:"value"`          // of each run
	CPU     []float64 `json:"cpu,omitempty"`  // processor seconds a sample, of all threads
	Faults  []float64 `json:"faults,omitempty"`
}

func (m *Measurement) subject(name string) *Subject {
	for i := range m.Subjects {
		if m.Subjects[i].Name == name {
			return &m.Subjects[i]
		}
	}
	return nil
}

// Stream reads measurements, one a line, as they come. It passes lines that are not a JSON object
// to other.
func Stream(r io.Reader, one func(Measurement), other func(line string)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "{") {
			other(line)
			continue
		}
		var m Measurement
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			return fmt.Errorf("measurement %q: %w", line, err)
		}
		if err := m.check(); err != nil {
			return err
		}
		one(m)
	}
	return lines.Err()
}

func (m *Measurement) check() error {
	for _, s := range m.Subjects {
		if len(s.Value) == 0 || len(s.Value) != len(m.Subjects[0].Value) {
			return fmt.Errorf("%s: %q ran %d times, %q %d times", m.Case, s.Name, len(s.Value), m.Subjects[0].Name,
				len(m.Subjects[0].Value))
		}
		for _, v := range s.Value {
			if !(v > 0) { //nolint:staticcheck // NaN too
				return fmt.Errorf("%s: a run of %q gave %g", m.Case, s.Name, v)
			}
		}
	}
	return nil
}

// Spread is the spread of several runs.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// SpreadOf returns zero for no values.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{Min: sorted[0], Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Max: sorted[n-1]}
}
