package client

import (
	"cmp"
	"fmt"

	"github.com/stocached/stocached/shm"
)

// Options describe a new cache. docs/spec/options.md says what each option means, and which values it
// takes. A fixed-size cache needs Samples and one of SampleBytes and Fields; a variable-size cache needs
// Samples, Variable and Size.
type Options struct {
	Samples     int     // samples of the dataset
	Size        uint64  // the most bytes of the whole cache. 0: large enough for all samples (fixed size only)
	SampleBytes int     // bytes of each sample, without Fields. With Variable: of the largest; 0: 4 GiB - 1
	Fields      []Field // the named parts of a sample, instead of SampleBytes
	Slots       int     // exact number of slots, without Variable. 0: as many as Size holds, at most Samples
	Policy      Policy  // which samples it keeps, and which go. Not PolicyFirstIndices with Variable
	Variable    bool    // samples differ in size
	// SlotBytes is the size of slots with Variable and a policy that evicts: best a sixteenth of a typical
	// sample. 0: one with which at most an eighth of the memory is lost, for any sizes of samples.
	SlotBytes   int
	Reserve     bool   // allocate all memory now, so that memory is never short for a fill
	UnlinkLast  bool   // remove a named cache with its last user; otherwise it stays until it is removed
	Dir         string // an existing directory on a tmpfs. "": /dev/shm/stocached-<uid>
	Fingerprint string // names dataset and transform, in at most 64 bytes; others are refused. "": none
	Clients     int    // clients at a time, at most 4,095. 0: 1,024
	Label       string // name of this program in stats. "": its own name
	// Disk is a disk cache behind this one: GetOrLoad and loaders ask it before they load a sample, and store in
	// both what they have loaded. The caller closes it after the cache. nil: none.
	Disk *Disk
	// Progress is called while Create reserves, with bytes. nil: not called.
	Progress func(done, total uint64)
}

// AttachOptions say how to attach. The zero value attaches for writing if that is allowed.
type AttachOptions struct {
	ReadOnly    bool   // attach for reading, even if writing is allowed; reads are not counted
	Fingerprint string // the cache must have it, else ErrFingerprint. "": not compared
	Policy      string // the cache must have the policy of this name, else ErrInvalid. "": not compared
	Label       string // name of this program in stats. "": its own name
	Disk        *Disk  // as in Options
}

// checkPolicy says whether a segment has the policy of a name; "": any.
func checkPolicy(seg *shm.Segment, name string) error {
	if name == "" {
		return nil
	}
	policy, err := ParsePolicy(name)
	if err == nil && policy != seg.Policy {
		err = fmt.Errorf("%w: the policy of %s is %v, and this program asks for %v; give it another name, or make the "+
			"cache again with that policy", ErrInvalid, cmp.Or(seg.Path(), "the cache"), seg.Policy, policy)
	}
	return err
}

// Field is a named part of a sample: its Name, its item type DType, and its shape Dims ([]uint64). Offset and Bytes are
// computed.
type Field = shm.Field

// DType is the item type of a field. Method ItemSize returns the bytes of an item, String its name.
type DType = shm.DType

// The item types.
const (
	Bytes      = shm.Bytes
	Bool       = shm.Bool
	Uint8      = shm.Uint8
	Int8       = shm.Int8
	Uint16     = shm.Uint16
	Int16      = shm.Int16
	Uint32     = shm.Uint32
	Int32      = shm.Int32
	Uint64     = shm.Uint64
	Int64      = shm.Int64
	Float16    = shm.Float16
	BFloat16   = shm.BFloat16
	Float32    = shm.Float32
	Float64    = shm.Float64
	Complex64  = shm.Complex64
	Complex128 = shm.Complex128
)

// VariableDim marks a dimension that differs between the samples of a variable-size cache.
const VariableDim = shm.VariableDim

// Policy says which samples a cache keeps. docs/spec/policies.md has the rules. Methods: Evicts says whether samples go
// for others, References whether hits change bytes of the cache, and String returns the name.
type Policy = shm.Policy

const (
	PolicyFirstCome    = shm.PolicyFirstCome    // each sample that is set, while slots are free
	PolicyFirstIndices = shm.PolicyFirstIndices // sample i < slots has slot i, others have none; fixed-size only

	// In a full cache these give the space of one sample to another. Such a cache gives out no views.
	PolicyCost   = shm.PolicyCost   // keeps the samples whose loads take longest; see SetParts
	PolicyRandom = shm.PolicyRandom // any sample goes
	PolicyClock  = shm.PolicyClock  // a sample without a recent hit goes
	PolicyFIFO   = shm.PolicyFIFO   // the oldest sample goes
	PolicyLRU    = shm.PolicyLRU    // among some samples, the one whose last hit is longest ago goes
	PolicyLFU    = shm.PolicyLFU    // among some samples, the one with the fewest hits goes
	// Of some samples, the one goes that jobs read last. Only a server evicts from such a cache.
	PolicyPlanned = shm.PolicyPlanned
)

// ParsePolicy returns the policy of a name such as "cost". An unknown name is ErrInvalid, with the
// names that exist.
func ParsePolicy(name string) (Policy, error) { return shm.ParsePolicy(name) }

// checkNumbers refuses negative numbers, which shm would show as huge ones.
func (o *Options) checkNumbers() error {
	for _, n := range []struct {
		name  string
		value int
	}{{"samples", o.Samples}, {"sample_bytes", o.SampleBytes}, {"slots", o.Slots}, {"slot_bytes", o.SlotBytes},
		{"clients", o.Clients}} {
		if n.value < 0 {
			return fmt.Errorf("%w: %s: %d is below 0", ErrInvalid, n.name, n.value)
		}
	}
	return nil
}

// segment converts the options.
func (o *Options) segment(name string) shm.Options {
	return shm.Options{Name: name, Dir: o.Dir, Samples: uint64(o.Samples), Limit: o.Size,
		Slots: uint64(o.Slots), SampleBytes: uint64(o.SampleBytes), Fields: o.Fields,
		Policy: o.Policy, SlotBytes: uint64(o.SlotBytes), Variable: o.Variable, Reserve: o.Reserve, UnlinkLast: o.UnlinkLast,
		ClientRecords: uint32(min(uint(o.Clients), 1<<32-1)),
		Fingerprint:   o.Fingerprint, Progress: o.Progress}
}
