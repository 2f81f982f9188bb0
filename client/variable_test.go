package client_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stocached/stocached/client"
)

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
