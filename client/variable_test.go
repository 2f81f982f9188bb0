package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
)

// sizeOf is the length of a sample in the tests of variable-size caches that evict: 1 to 60 KB.
func sizeOf(i int) int { return 1000 + i*i*7919%59_000 }

// Ensure that a variable-size cache with a policy that evicts keeps every promise of the public API: what
// is there is right, views are refused, and space of samples that went is used again.
func TestVariableEvicts(t *testing.T) {
	const samples = 300 // of 9 MB together
	for policy := client.PolicyCost; policy <= client.PolicyLFU; policy++ {
		t.Run(policy.String(), func(t *testing.T) {
			c := create(t, client.Options{Samples: samples, Variable: true, Size: 6 << 20, Policy: policy, Clients: 8})
			if !c.Info().Evicts || !c.Info().Variable || c.Info().Slots != 0 {
				t.Errorf("evicts %v, variable %v, %d slots", c.Info().Evicts, c.Info().Variable, c.Info().Slots)
			}
			if _, hit, err := c.View(0); hit || !errors.Is(err, client.ErrInvalid) {
				t.Errorf("a view: %v, %v", hit, err)
			}
			loads := 0
			for k := range 5 * samples {
				i := k * 7 % samples
				switch k % 3 {
				case 0:
					data, err := c.GetOrLoad(t.Context(), i, func(context.Context) ([]byte, error) {
						loads++
						return sample(i, sizeOf(i)), nil
					})
					if err != nil || string(data) != string(sample(i, sizeOf(i))) {
						t.Fatalf("sample %d: %d bytes, %v", i, len(data), err)
					}
				case 1:
					took := time.Duration(1+i) * time.Millisecond
					if _, err := c.SetParts(i, [][]byte{sample(i, sizeOf(i))}, client.Overwrite, took); err != nil {
						t.Fatal(err)
					}
				case 2:
					claim, r, err := c.Claim(i, sizeOf(i), 0)
					if err != nil || r == client.Busy {
						t.Fatal(r, err)
					}
					if claim == nil {
						break
					}
					if k%2 == 0 {
						err = claim.Abort()
					} else if _, err = claim.WriteAt(sample(i, sizeOf(i)), 0); err == nil {
						err = claim.Publish()
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			indices, lengths, offsets := make([]int, samples), make([]uint64, samples), make([]uint64, samples)
			for i := range indices {
				indices[i], offsets[i] = i, uint64(i)*60_000
			}
			there, err := c.Lengths(indices, lengths)
			if err != nil {
				t.Fatal(err)
			}
			dst, hit := make([]byte, samples*60_000), make([]bool, samples)
			if n, err := c.GatherPacked(indices, dst, offsets, lengths, hit, 2); n != there || err != nil {
				t.Errorf("%d of %d, %v", n, there, err)
			}
			for i, is := range hit {
				if is && string(dst[offsets[i]:offsets[i]+lengths[i]]) != string(sample(i, sizeOf(i))) {
					t.Errorf("sample %d came wrong", i)
				}
			}
			if _, err := c.Gather(indices[:1], dst, client.GatherOptions{Stride: 60_000}); !errors.Is(err, client.ErrSchema) {
				t.Errorf("gather: %v", err)
			}
			n := 0
			for i, data := range c.Ready() {
				if n++; string(data) != string(sample(i, sizeOf(i))) {
					t.Errorf("sample %d has other bytes", i)
				}
			}
			if v, err := c.Inspect().Verify(0, samples); err != nil || v.Corrupt != 0 || v.Checked != there || n != there {
				t.Errorf("%+v, %v; %d are there, %d are ready", v, err, there, n)
			}
			s, err := c.Stats()
			const room = 4 << 20 // the tables have 2 MiB
			if err != nil || s.Evicted == 0 || s.Corrupt+s.Lost != 0 || loads == 0 || s.ReadyBytes*100 < room*75 {
				t.Errorf("%d of %d bytes are used, %d loads, %+v, %v", s.ReadyBytes, room, loads, s, err)
			}
		})
	}
}

// Ensure that the size of slots may be given, and that what is impossible is refused with the next step.
func TestSlotBytes(t *testing.T) {
	o := client.Options{Samples: 100, Variable: true, Size: 6 << 20, Policy: client.PolicyCost, Clients: 8, SlotBytes: 256}
	c := create(t, o)
	if r, err := c.Set(1, sample(1, 100_000), 0); r != client.Stored || err != nil {
		t.Error(r, err)
	}
	if s, err := c.Stats(); err != nil || s.ArenaNextBytes != 100_096 {
		t.Errorf("%+v, %v", s, err)
	}
	o.Policy = client.PolicyPlanned // without a server no sample goes
	c = create(t, o)
	i := 0
	for r := client.Stored; r == client.Stored; i++ {
		var err error
		if r, err = c.Set(i, sample(i, 100_000), 0); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := c.Set(1, sample(1, 200_000), client.Overwrite); r != client.Full || err != nil {
		t.Error(r, err)
	}
	for k, want := range []client.State{client.StateReady, client.StateEmpty, client.StateReady} {
		if got, err := c.Inspect().State(k); got != want || err != nil {
			t.Errorf("sample %d is %v, %v: an overwrite frees the old version first", k, got, err)
		}
	}
	for want, change := range map[string]func(o *client.Options){
		"sample i has slot i":        func(o *client.Options) { o.SlotBytes, o.Policy = 0, client.PolicyFirstIndices },
		"leave it out":               func(o *client.Options) { o.SlotBytes = 100 },
		"slot_bytes: -1 is below 0":  func(o *client.Options) { o.SlotBytes = -1 },
		"only a variable-size cache": func(o *client.Options) { o.Variable, o.SampleBytes = false, 10 },
	} {
		o := o
		change(&o)
		if _, err := client.Create("", o); !errors.Is(err, client.ErrInvalid) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
