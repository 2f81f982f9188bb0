package main

import (
	"math"
	"testing"
)

// Real caches do what the simulator predicts, within 2 %, where chance is small: few rounds of few samples.
func TestPredictions(t *testing.T) {
	for _, r := range cases(4000, 200) {
		trace, err := r.trace()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range r.policies {
			observed, of, err := r.observe(trace, name, 0)
			if err != nil {
				t.Fatal(err)
			}
			predicted, err := r.predict(trace, name, of)
			if err != nil {
				t.Fatal(err)
			}
			last := r.epochs - 1
			switch p, o := predicted[last], observed[last]; {
			case len(observed) != r.epochs, o.hitRate <= 0, o.hitRate >= 1, o.timeSaved <= 0, o.timeSaved >= 1:
				t.Errorf("%s, %s: %v", r.title, name, observed)
			case name != "planned" && name != "first-come" && (name != "cost" || r.zipf), r.sized, r.spun > 0:
			case math.Abs(o.hitRate/p.hitRate-1) > allowed, math.Abs(o.timeSaved/p.timeSaved-1) > allowed:
				t.Errorf("%s, %s: predicted %+v, observed %+v", r.title, name, p, o)
			}
		}
	}
}

// Our loader of Go hits what the simulator predicts with batches, within 15 %. Without batches it would be 35 % off.
func TestLoaderPredictions(t *testing.T) {
	for _, r := range loaders(2048) {
		if r.by.language != "go" {
			continue
		}
		trace, err := r.trace()
		if err != nil {
			t.Fatal(err)
		}
		observed, of, err := r.observe(trace, "fifo", 0)
		if err != nil {
			t.Fatal(err)
		}
		predicted, err := r.predict(trace, "fifo", of)
		if err != nil {
			t.Fatal(err)
		}
		last := r.epochs - 1
		if p, o := predicted[last].hitRate, observed[last].hitRate; !(math.Abs(o/p-1) < 0.15) {
			t.Errorf("%s: predicted %.4f, observed %.4f", r.title, p, o)
		}
	}
}
