package order

import "fmt"

// Stop says where an epoch of a MixedOrder ends.
type Stop uint32

const (
	// StopFirst ends it when one dataset has been read to its end. No sample comes twice, and some
	// samples of the other datasets do not come.
	StopFirst Stop = iota
	// StopAll ends it when each dataset has been read to its end. A dataset that is too small for
	// its ratio starts again, in another order, as often as needed.
	StopAll
	// StopLength ends it at Length. Each dataset continues in the next epoch, so its own epochs may
	// end at any position.
	StopLength
)

// MaxDatasets is the most datasets of a MixedOrder.
const MaxDatasets = 1 << 16

// MixedOrder takes samples from several datasets by ratio. Indices are those of the concatenated
// datasets; see Concatenation.
type MixedOrder struct {
	Orders []Order  // one for each dataset, 1 to MaxDatasets of them; together at most MaxSamples samples
	Ratios []uint64 // one for each, from 1 on, their sum below 2^31: 7 and 3 for 70 and 30 percent
	Seed   uint64   // decides, with the ratios, which dataset has which position
	Stop   Stop
	Length uint64 // StopLength: positions of an epoch, 1 to MaxSamples. Else 0
}

// check returns ErrInvalid for settings that make no sense.
func (o *MixedOrder) check() error {
	if len(o.Orders) < 1 || len(o.Orders) > MaxDatasets || len(o.Ratios) != len(o.Orders) {
		return fmt.Errorf("%w: %d orders and %d ratios; there are 1 to %d orders, and a ratio for each",
			ErrInvalid, len(o.Orders), len(o.Ratios), MaxDatasets)
	}
	var samples, sum uint64
	for d := range o.Orders {
		if err := o.Orders[d].check(); err != nil {
			return fmt.Errorf("dataset %d: %w", d, err)
		}
		samples += o.Orders[d].Samples
		sum += min(o.Ratios[d], maxRatioSum)
		if o.Ratios[d] < 1 || sum >= maxRatioSum {
			return fmt.Errorf("%w: ratio %d of dataset %d; ratios are whole numbers from 1 on whose sum is below %d",
				ErrInvalid, o.Ratios[d], d, maxRatioSum)
		}
	}
	switch {
	case samples > MaxSamples:
		return fmt.Errorf("%w: %d samples in all datasets are more than %d", ErrInvalid, samples, uint64(MaxSamples))
	case o.Stop > StopLength:
		return fmt.Errorf("%w: unknown stop %d", ErrInvalid, o.Stop)
	case (o.Stop == StopLength) != (o.Length > 0) || o.Length > MaxSamples:
		return fmt.Errorf("%w: a length of %d with stop %d; StopLength has one, of 1 to %d, others have none",
			ErrInvalid, o.Length, o.Stop, uint64(MaxSamples))
	}
	return nil
}

// Epoch returns the order of an epoch. All epochs have the same length. Time and memory grow with
// the number of datasets, not with their samples. It returns ErrInvalid.
func (o MixedOrder) Epoch(number uint64) (*Epoch, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m := &mixture{tree: newTree(o.Ratios, o.Seed), members: make([]member, len(o.Orders)), number: number,
		goesOn: o.Stop == StopLength}
	e := &Epoch{number: number, positions: o.Length, mix: m}
	e.Seed = o.Seed
	for d := range m.members {
		p := &m.members[d]
		p.order = o.Orders[d]
		p.order.Seed = chain(o.Seed, ofDataset, uint64(d), p.order.Seed)
		p.offset = e.Samples
		e.Samples += p.order.Samples
		if m.goesOn {
			p.before = number * m.tree.count(d, o.Length)
			continue
		}
		end := m.tree.position(d, p.order.Samples-1)
		if end != never {
			end++
		}
		if d == 0 || (end < e.positions) == (o.Stop == StopFirst) {
			e.positions = end
		}
	}
	if e.positions > MaxSamples {
		return nil, fmt.Errorf("%w: an epoch would have more than %d positions until %s been read to the end; "+
			"set a length (StopLength) or closer ratios",
			ErrInvalid, uint64(MaxSamples),
			map[Stop]string{StopFirst: "a dataset has", StopAll: "all datasets have"}[o.Stop])
	}
	return e, nil
}

// mixture is one epoch of a MixedOrder.
type mixture struct {
	tree    *tree
	members []member
	number  uint64
	goesOn  bool
}

// member is a dataset of a mixture.
type member struct {
	order  Order  // with its seed in the mix
	offset uint64 // index of its first sample
	before uint64 // items in the earlier epochs
}

// mixMemory keeps the states of the datasets that were used last. It keeps few, so that its size
// does not grow with the number of datasets.
type mixMemory struct {
	slots [8]struct {
		made    bool
		dataset int
		plain   plain
		window  window
	}
}

func (m *mixture) at(position uint64, memory *mixMemory) uint64 {
	d, item := m.tree.at(position)
	p := &m.members[d]
	item += p.before
	number, local := item/p.order.Samples, item%p.order.Samples
	if !m.goesOn {
		number = m.number + number<<32
	}
	slot := &memory.slots[d%len(memory.slots)]
	if !slot.made || slot.dataset != d || slot.plain.number != number {
		slot.made, slot.dataset, slot.window = true, d, window{}
		slot.plain.begin(&p.order, number)
	}
	return p.offset + slot.plain.at(local, &slot.window)
}
