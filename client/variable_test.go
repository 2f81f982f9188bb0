package client_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that the size of slots may be given, and that what is impossible is refused with the next step.
func TestSlotBytes(t *testing.T) {
	o := client.Options{Samples: 100, Variable: true, Size: 6 << 20, Policy: client.PolicyCost, Clients: 8, SlotBytes: 256}
	c := create(t, o)
	expect.Gives(c.Set(1, sample(1, 100_000), 0))(t, client.Stored)
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
	expect.Gives(c.Set(1, sample(1, 200_000), client.Overwrite))(t, client.Full)
	for k, want := range []client.State{client.StateReady, client.StateEmpty, client.StateReady} {
		expect.Gives(c.Inspect().State(k))(t, want, k)
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
