package client_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// A sample that a program reads once is counted once: as a hit or as a miss, whichever calls it takes.
func TestEachReadIsCountedOnce(t *testing.T) {
	for name, o := range map[string]client.Options{
		"fixed":    {Samples: 100, SampleBytes: 8, Slots: 40},
		"variable": {Samples: 100, Variable: true, SampleBytes: 8, Size: 4 << 20, Clients: 8},
	} {
		t.Run(name, func(t *testing.T) {
			c := create(t, o)
			load := func(context.Context) ([]byte, error) { return make([]byte, 8), nil }
			for epoch := range 2 {
				for i := range 40 {
					fatal.Value(c.GetOrLoad(t.Context(), i, load))(t)
				}
				if s, _ := c.Stats(); s.Misses != 40 || s.Hits != uint64(40*epoch) {
					t.Fatalf("epoch %d of GetOrLoad: %d hits, %d misses", epoch, s.Hits, s.Misses)
				}
			}
			before, _ := c.Stats()
			for i := range 100 {
				_, hit, err := c.Get(i, make([]byte, 8))
				if err == nil && !hit {
					_, err = c.LoadMissed(t.Context(), i, load)
				}
				fatal.If(t, err)
			}
			if s, _ := c.Stats(); s.Hits-before.Hits != 40 || s.Misses-before.Misses != 60 {
				t.Errorf("Get and LoadMissed: %d hits, %d misses of 100 reads", s.Hits-before.Hits, s.Misses-before.Misses)
			}
		})
	}
}

func TestLoadMissedChecksItsIndex(t *testing.T) {
	c := create(t, client.Options{Samples: 4, SampleBytes: 8})
	for _, i := range []int{-1, 4} {
		_, err := c.LoadMissed(t.Context(), i, func(context.Context) ([]byte, error) {
			t.Error("loaded sample", i)
			return make([]byte, 8), nil
		})
		if !errors.Is(err, client.ErrIndex) {
			t.Errorf("sample %d: %v", i, err)
		}
	}
}

// A load that ends between the miss of a caller and its own load gives its sample, and no second count.
func TestLateMissIsCountedOnce(t *testing.T) {
	c := create(t, client.Options{Samples: 4, SampleBytes: 8})
	other := fatal.Value(client.AttachFD(c.Info().FD, client.AttachOptions{}))(t)
	defer other.Close()
	if _, hit, err := c.Get(1, make([]byte, 8)); hit || err != nil {
		t.Fatal(hit, err)
	}
	fatal.Gives(other.Set(1, []byte("12345678"), 0))(t, client.Stored)
	data, err := c.LoadMissed(t.Context(), 1, func(context.Context) ([]byte, error) {
		t.Error("loaded, although the cache has it")
		return make([]byte, 8), nil
	})
	if s, _ := c.Stats(); string(data) != "12345678" || err != nil || s.Hits != 0 || s.Misses != 1 {
		t.Errorf("%q, %v, %d hits, %d misses", data, err, s.Hits, s.Misses)
	}
}
