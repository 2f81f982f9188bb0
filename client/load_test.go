package client

import (
	"context"
	"slices"
	"testing"
)

// A load that begins after another one has stored the sample, but after a miss of its own caller,
// finds the sample in the cache.
func TestLoadThatBeginsLateFindsTheSample(t *testing.T) {
	c, err := Create("", Options{Samples: 10, SampleBytes: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []byte{1, 2, 3, 4}
	load := func(context.Context) ([]byte, error) { return want, nil }
	if _, err := c.GetOrLoad(t.Context(), 5, load); err != nil {
		t.Fatal(err)
	}
	late, leader := c.join(5) // as GetOrLoad does after its miss
	if !leader {
		t.Fatal("the first load has not ended")
	}
	got, err := c.lead(t.Context(), 5, late, func(context.Context) ([]byte, error) {
		t.Error("the sample was loaded twice")
		return want, nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Error(got, err)
	}
}
