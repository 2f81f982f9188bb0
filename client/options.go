package client

import "github.com/stocached/stocached/shm"

// Options say what to create. A fixed-size cache needs Samples and one of SampleBytes and Fields; a variable-size one Samples, Variable and Size.
type Options struct {
	Samples     int                      // of the dataset
	Size        uint64                   // bytes that the cache never exceeds, its index included. 0: room for every sample (fixed size only)
	SampleBytes int                      // of every sample, without Fields. With Variable: of the largest accepted, 0: 4 GiB - 1
	Fields      []Field                  // the named parts of a sample, instead of SampleBytes
	Slots       int                      // exactly so many samples fit. 0: as many as Size holds, at most Samples. Excludes Variable
	Assign      Assign                   // which samples get a slot. Excludes Variable
	Variable    bool                     // samples differ in size
	Reserve     bool                     // take all memory now, so that no fill is ever refused for lack of it
	UnlinkLast  bool                     // a named cache goes with its last user; else it stays until it is removed
	Dir         string                   // an existing directory on a tmpfs. "": /dev/shm/stocached-<uid>
	Fingerprint string                   // of dataset and transform, at most 64 bytes: whoever attaches with another is refused. "": none
	Clients     int                      // at a time, at most 4,095. 0: 1,024
	Label       string                   // of this program, shown by stats. "": its name
	Progress    func(done, total uint64) // called while reserving, in bytes. nil: not called
}

// AttachOptions say how to attach. The zero value is the usual way.
type AttachOptions struct {
	ReadOnly    bool   // attach for reading though writing would be allowed; reads are not counted
	Fingerprint string // that the cache must have; else ErrFingerprint. "": not compared
	Label       string // of this program, shown by stats. "": its name
}

// Field is a named part of a sample: its name, item type and shape. Offset and Bytes are computed.
type Field = shm.Field

// DType is the item type of a field.
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

// VariableDim marks a dimension that differs between samples, in a variable-size cache.
const VariableDim = shm.VariableDim

// Assign says which samples of a fixed-size cache get a slot.
type Assign = shm.Assign

const (
	FirstCome    = shm.AssignFirstCome    // any sample that is set while there is room
	FirstIndices = shm.AssignFirstIndices // sample i < slots has slot i, the others never get one
)

// segment translates; negative numbers become huge and are refused with the others.
func (o *Options) segment(name string) shm.Options {
	return shm.Options{Name: name, Dir: o.Dir, Samples: uint64(o.Samples), Limit: o.Size, Slots: uint64(o.Slots), SampleBytes: uint64(o.SampleBytes), Fields: o.Fields,
		Assign: o.Assign, Variable: o.Variable, Reserve: o.Reserve, UnlinkLast: o.UnlinkLast, ClientRecords: uint32(min(uint(o.Clients), 1<<32-1)),
		Fingerprint: o.Fingerprint, Progress: o.Progress}
}
