package decode

import (
	"fmt"
	"math"
)

// The model of docs/spec/stores.md, as in python/src/stocached/_datasets/stores.py. The tests of both read the cases in
// source/testdata/stores.json.

const (
	control = 4_300_000 // bytes of a segment besides its samples, about
	overlap = 8         // source and processors that are equally busy take 9 % longer, as they wait for each other
	alike   = 0.02      // of the time of an epoch: smaller differences are none
)

// Measured is what the store auto measures. Seconds and bytes are means of a sample.
type Measured struct {
	Samples      int       `json:"samples"` // of the dataset
	EncodedBytes float64   `json:"encoded_bytes"`
	DecodedBytes float64   `json:"decoded_bytes"`
	Read         float64   `json:"read"`         // seconds of a read, alone
	ReadBusy     float64   `json:"read_busy"`    // of these, seconds of a processor
	Reads        float64   `json:"reads"`        // a second, while all readers read; infinite if they do not wait for the source
	Decode       float64   `json:"decode"`       // seconds of a processor
	Augment      float64   `json:"augment"`      // the same, of the steps after the cache; a server knows none
	Sizes        []float64 `json:"sizes"`        // of some files, by their mean, in rising order
	ReadGrows    float64   `json:"read_grows"`   // the part of a read's time that grows with the size of the file
	DecodeGrows  float64   `json:"decode_grows"` // the same of a decode
}

// rest is the mean size of the files that are not cached, if the largest are.
func (m *Measured) rest(part float64) float64 {
	n := max(int(math.RoundToEven(float64(len(m.Sizes))*(1-part))), 1)
	if len(m.Sizes) == 0 {
		return 1
	}
	sum := 0.0
	for _, size := range m.Sizes[:n] {
		sum += size
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
	Size       uint64 // of the cache
	Readers    int    // that read, and decode for decoded
	Decoders   int    // that decode for encoded, each with one read at a time
	Processors int
	Costliest  bool // the cache of decoded samples keeps those that take longest to load
}

// Epochs says what an epoch takes with either store, in a cache that is full.
func (m *Measured) Epochs(t Terms) Epochs {
	n, room := float64(m.Samples), max(float64(t.Size)-control, 0)
	seconds := func(workers int, part, decodes, rest float64) float64 {
		workers = max(workers, 1)
		reads := n * (1 - part) * (1 + m.ReadGrows*(rest-1))
		source := 0.0 // a worker alone waits for it in its own time
		if workers > 1 {
			source = reads / m.Reads
		}
		work := decodes*m.Decode*(1+m.DecodeGrows*(rest-1)) + n*m.Augment
		busy := (reads*m.ReadBusy + work) / float64(min(workers, t.Processors))
		both := math.Pow(math.Pow(source, overlap)+math.Pow(busy, overlap), 1.0/overlap)
		if reads == 0 {
			return both
		}
		each, length, used := 0.0, 0.0, 0.0 // seconds of a worker for a read; reads at the source, and their busy part
		for k := 1; k <= workers; k++ {
			queued := (length - used/2) / m.Reads
			each = m.Read + work/reads + queued
			length, used = float64(k)*(1/m.Reads+queued)/each, float64(k)/m.Reads/each
		}
		return max(reads*each/float64(workers), both)
	}
	e := Epochs{DecodedPart: min(room/(n*m.DecodedBytes), 1), EncodedPart: min(room/(n*m.EncodedBytes), 1)}
	rest := 1.0
	if t.Costliest {
		rest = m.rest(e.DecodedPart)
	}
	e.Decoded = seconds(t.Readers, e.DecodedPart, n*(1-e.DecodedPart), rest)
	e.Encoded = seconds(t.Decoders, e.EncodedPart, n, 1)
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
