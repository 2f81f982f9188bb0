package decode

import (
	"fmt"
	"math"
)

// The rule of docs/spec/stores.md, as in python/src/stocached/_datasets/stores.py. The tests of both read the cases in
// source/testdata/stores.json.

const (
	control = 4_300_000 // bytes of a segment besides its samples, about
	alike   = 0.02      // share of the time of an epoch: smaller differences are none
)

// Measured is what the store auto measures. Seconds and bytes are means of a sample.
type Measured struct {
	Samples      int       `json:"samples"` // samples of the dataset
	EncodedBytes float64   `json:"encoded_bytes"`
	DecodedBytes float64   `json:"decoded_bytes"`
	Read         float64   `json:"read"`    // seconds of a read, alone
	Reads        float64   `json:"reads"`   // a second, while all readers read; infinite if they do not wait for the source
	Decode       float64   `json:"decode"`  // seconds of a processor
	Augment      float64   `json:"augment"` // the same, of the steps after the cache; a server knows none
	Costs        []float64 `json:"costs"`   // read and decode of some files, by their mean, in rising order
}

// rest is the mean cost of the samples that are not cached, if the costliest are.
func (m *Measured) rest(part float64) float64 {
	n := max(int(math.RoundToEven(float64(len(m.Costs))*(1-part))), 1)
	if len(m.Costs) == 0 {
		return 1
	}
	sum := 0.0
	for _, cost := range m.Costs[:n] {
		sum += cost
	}
	return sum / float64(n)
}

// Epochs are the seconds of an epoch, and the parts of the samples that are cached.
type Epochs struct {
	Decoded     float64 `json:"decoded"`
	Encoded     float64 `json:"encoded"`
	DecodedPart float64 `json:"decoded_part"`
	EncodedPart float64 `json:"encoded_part"`
}

// Terms say where samples are cached, read and decoded.
type Terms struct {
	Size       uint64 // bytes of the cache
	Readers    int    // threads that read, and decode for decoded
	Decoders   int    // threads that decode for encoded, each with one read at a time
	Processors int
	Costliest  bool // the cache of decoded samples keeps those that take longest to load
}

// Epochs says what an epoch takes with either store, in a cache that is full.
func (m *Measured) Epochs(t Terms) Epochs {
	n, room := float64(m.Samples), max(float64(t.Size)-control, 0)
	e := Epochs{DecodedPart: min(room/(n*m.DecodedBytes), 1), EncodedPart: min(room/(n*m.EncodedBytes), 1)}
	seconds := func(workers int, reads, decodes float64) float64 { // the busiest sets the pace
		workers = max(workers, 1)
		work := decodes*m.Decode + n*m.Augment
		return max(reads/m.Reads, work/float64(min(workers, t.Processors)), (reads*m.Read+work)/float64(workers))
	}
	missed := n * (1 - e.DecodedPart)
	if t.Costliest {
		missed *= m.rest(e.DecodedPart)
	}
	e.Decoded = seconds(t.Readers, missed, missed)
	e.Encoded = seconds(t.Decoders, n*(1-e.EncodedPart), n)
	return e
}

// Choose returns whether epochs with files are shorter, and why. Of equal ones pictures are chosen: they leave
// processors to the training.
func (m *Measured) Choose(t Terms) (encoded bool, why string) {
	e := m.Epochs(t)
	return e.Encoded < e.Decoded*(1-alike), fmt.Sprintf(
		"an epoch takes about %.3g s with encoded files (%.0f%% of them cached), %.3g s with decoded pictures (%.0f%%): "+
			"a read takes %.2g ms, a decode %.2g ms; %d readers, and clients that decode with %d processors",
		e.Encoded, 100*e.EncodedPart, e.Decoded, 100*e.DecodedPart, 1e3*m.Read, 1e3*m.Decode, t.Readers, t.Processors)
}
