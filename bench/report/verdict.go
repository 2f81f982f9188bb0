package report

import (
	"fmt"
	"slices"
)

// Verdict is the result of a requirement for a measurement.
type Verdict struct {
	Row   string  `json:"row"`
	Case  string  `json:"case"`
	Size  string  `json:"size,omitempty"`
	Ours  string  `json:"ours"`
	Base  string  `json:"base,omitempty"`
	Sense Sense   `json:"sense"`
	Need  float64 `json:"need,omitempty"`
	Unit  string  `json:"unit,omitempty"`
	Bound bool    `json:"bound,omitempty"`
	// of each run with the base's run beside it; with Above, their difference; with Below, of the
	// values
	Ratio     Spread `json:"ratio"`
	OursValue Spread `json:"ours_value"`
	BaseValue Spread `json:"base_value"`
	// Medians, a sample.
	OursCPU    float64 `json:"ours_cpu,omitempty"`
	BaseCPU    float64 `json:"base_cpu,omitempty"`
	OursFaults float64 `json:"ours_faults,omitempty"`
	BaseFaults float64 `json:"base_faults,omitempty"`
	// like Ratio, of processor time, which other programs disturb less; unreliable if threads share
	// the work
	CPURatio float64 `json:"cpu_ratio,omitempty"`
	Reached  bool    `json:"reached"`
	// "reached", "not reached", "reached otherwise" (another of its Or is), "shown", "a bound,
	// which ...", "not measured: why"
	Result string `json:"result"`
	or     string
}

// Of a requirement whose case was not run.
const (
	missing = "not run"
	notRun  = "not measured: " + missing
)

// Judge applies requirements to the measurements. A requirement whose case is missing is "not
// measured". So is one whose subject is missing, if peers were left out; else that is an error.
func Judge(requirements []Requirement, all []Measurement, peers bool) ([]Verdict, error) {
	var verdicts []Verdict
	for _, r := range requirements {
		found := false
		for i := range all {
			m := &all[i]
			if m.Case != r.Case || r.Sizes != nil && !slices.Contains(r.Sizes, m.Size) {
				continue
			}
			found = true
			v, err := r.judge(m, peers)
			if err != nil {
				return nil, err
			}
			verdicts = append(verdicts, v)
		}
		if !found {
			verdicts = append(verdicts, r.verdict(&Measurement{Missing: missing}))
		}
	}
	for i := range verdicts {
		v := &verdicts[i]
		if v.or == "" || v.Reached {
			continue
		}
		for _, w := range verdicts {
			if w.or == v.or && w.Case == v.Case && w.Size == v.Size && w.Reached {
				v.Result = "reached otherwise"
			}
		}
	}
	return verdicts, nil
}

func (r *Requirement) verdict(m *Measurement) Verdict {
	v := Verdict{Row: r.Row, Case: r.Case, Size: m.Size, Ours: r.Ours, Base: r.Base, Sense: r.Sense, Need: r.Need,
		Unit: r.Unit, Bound: r.Bound, or: r.Or}
	if m.Missing != "" {
		v.Result = "not measured: " + m.Missing
	}
	return v
}

func (r *Requirement) judge(m *Measurement, peers bool) (Verdict, error) {
	v := r.verdict(m)
	if m.Missing != "" {
		return v, nil
	}
	ours, base := m.subject(r.Ours), m.subject(r.Base)
	if ours == nil || base == nil && r.Base != "" {
		if !peers {
			v.Result = "not measured: needs --peers"
			return v, nil
		}
		return v, fmt.Errorf("case %s of size %q has no subject %q or %q", m.Case, m.Size, r.Ours, r.Base)
	}
	if v.Unit == "" {
		v.Unit = ours.Unit
	}
	v.OursValue, v.OursCPU, v.OursFaults = SpreadOf(ours.Value), SpreadOf(ours.CPU).Median, SpreadOf(ours.Faults).Median
	if base != nil && len(base.CPU) > 0 {
		v.CPURatio = SpreadOf(ratiosOf(ours.CPU, base.CPU, r.Sense.ofRatio())).Median
	}
	ratios := slices.Clone(ours.Value)
	if base != nil {
		v.BaseValue, v.BaseCPU, v.BaseFaults = SpreadOf(base.Value), SpreadOf(base.CPU).Median,
			SpreadOf(base.Faults).Median
		ratios = ratiosOf(ours.Value, base.Value, r.Sense)
	}
	v.Ratio = SpreadOf(ratios)
	switch r.Sense {
	case Shown:
		v.Reached, v.Result = true, "shown"
		return v, nil
	case Faster:
		v.Reached = v.Ratio.Median >= r.Need
	default:
		v.Reached = v.Ratio.Median <= r.Need
	}
	v.Result = map[bool]string{true: "reached", false: "not reached"}[v.Reached]
	if r.Bound {
		v.Result = map[bool]string{true: "a bound, which reaches it", false: "a bound, which misses it"}[v.Reached]
	}
	return v, nil
}

// ofRatio returns the sense for a ratio of the same values.
func (s Sense) ofRatio() Sense {
	if s == Above {
		return Within
	}
	return s
}

func ratiosOf(ours, base []float64, sense Sense) []float64 {
	ratios := make([]float64, len(ours))
	for k := range ratios {
		switch {
		case sense == Above:
			ratios[k] = ours[k] - base[k]
		case ours[k] == 0 || base[k] == 0: // the run is too short for the clock of processor time
			ratios[k] = 1
		case sense == Faster:
			ratios[k] = base[k] / ours[k]
		default:
			ratios[k] = ours[k] / base[k]
		}
	}
	return ratios
}
