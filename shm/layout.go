package shm

import (
	"fmt"
	"hash/crc32"
)

// The constants of this file are the format of the segment, as docs/spec/segment.md specifies it.
// cclient/stocached_layout.h is generated from them. A change of any constant makes another format.

//go:generate go run ../internal/layoutheader
//go:generate go test -run TestGolden -update .

// Identity of the format.
const (
	Magic         = "STOCACHE"
	LayoutVersion = 1
	EndianMark    = 0x01020304
)

// Regions, in bytes.
const (
	HeaderBytes      = 4096
	ControlOffset    = HeaderBytes
	ControlBytes     = 4096
	ClientsOffset    = ControlOffset + ControlBytes
	RegionAlign      = 4096
	PayloadAlign     = 2 << 20
	IndexRecordBytes = 16
	SumRecordBytes   = 8
	LengthBytes      = 8 // word of a sample in the region lengths
	SlotRecordBytes  = 8
	UnitBytes        = 64 // unit of an arena
	GroupRecordBytes = 8
	GroupSlots       = 512 // slots of a group, in an arena that evicts
)

// The session of a segment on a disk, in its file.
const (
	DiskSession      = ControlOffset
	DiskPID          = 16 // offset in the session
	DiskKind         = 20
	DiskLabel        = 24
	DiskSessionBytes = DiskLabel + ClientLabelBytes
)

// Limits of the format: what bit fields and tables can hold.
const (
	MaxClientRecords = 4095            // owner numbers have 12 bits, 0 is no owner
	MaxSlots         = 1<<32 - 2       // places have 32 bits, 0 is none
	MaxSamples       = 1 << 40         // keeps every offset far from overflow
	MaxSampleBytes   = 1<<32 - 1       // lengths have 32 bits
	MaxItems         = 1<<32 - 1       // items of a list whose length the cache knows
	MaxArenaBytes    = UnitBytes << 36 // 4 TiB
	MaxChainSamples  = 1<<31 - 2       // samples of an arena that evicts: an entry of its slot table has 31 bits for a sample
	MaxChainStride   = 2 << 20         // largest slot of an arena that evicts
	MaxFields        = 24
	MaxDims          = 8
	FieldNameBytes   = 40
	FingerprintBytes = 64
	NameBytes        = 128
	DecodeBytes      = 128
	VariableDim      = 1<<64 - 1
)

// Offsets in the header.
const (
	HeaderMagic           = 0
	HeaderVersion         = 8
	HeaderSignature       = 12
	HeaderEndianMark      = 16
	HeaderCRC             = 20
	HeaderSegmentBytes    = 24
	HeaderUUID            = 32
	HeaderCreated         = 48
	HeaderUID             = 56
	HeaderFlags           = 60
	HeaderSamples         = 64
	HeaderSlots           = 72
	HeaderSampleBytes     = 80
	HeaderSlotStride      = 88
	HeaderClientRecords   = 96
	HeaderPolicy          = 100
	HeaderIndexOffset     = 104
	HeaderSlotTableOffset = 112
	HeaderPayloadOffset   = 120
	HeaderPayloadBytes    = 128
	HeaderFieldCount      = 136
	HeaderLimitBytes      = 144
	HeaderSumsOffset      = 152
	HeaderReferenceOffset = 160
	HeaderGroupsOffset    = 168
	HeaderLengthsOffset   = 176
	HeaderFingerprint     = 192
	HeaderName            = 256
	HeaderDecode          = 384
	HeaderFields          = 1024
)

// Offsets in a field record of the header.
const (
	FieldBytes  = 128
	FieldName   = 0
	FieldDType  = 40
	FieldNDim   = 42
	FieldOffset = 48
	FieldSize   = 56
	FieldDims   = 64
)

// Flags of the header.
const (
	FlagVariable   = 1 << 0
	FlagUnlinkLast = 1 << 1
	FlagReserved   = 1 << 2
	FlagNamed      = 1 << 3
	FlagPrograms   = 1 << 4
	FlagLengths    = 1 << 5
	FlagsKnown     = 1<<6 - 1
)

// Offsets of the control words in the file, and of the bytes that clients lock.
const (
	UsersLockByte     = 4096
	ServerLockByte    = 4097
	PhaseOffset       = 4224
	FreeFromOffset    = 4352
	ArenaNextOffset   = 4480
	ClientsHighOffset = 4608
	HandOffset        = 4736
	AllowanceOffset   = 4864
	AllowanceWords    = 16
	SpreadOffset      = 6912
	LapOffset         = 7040 // offset of the first of three words on one line
	BelowOffset       = 7168
	ControlLineBytes  = 128 // from word to word
)

// A client record.
const (
	ClientRecordBytes    = 2048
	ClientPID            = 0
	ClientKind           = 4
	ClientPIDNamespace   = 8
	ClientStartTicks     = 16
	ClientRegistered     = 24
	ClientRegistrations  = 32
	ClientLabel          = 64
	ClientLabelBytes     = 64
	ClientClaims         = 128
	ClaimsPerClient      = 32
	ClaimBytes           = 16
	ClientCounters       = 640
	CounterStripes       = 4
	CountersPerStripe    = 16
	CounterStripeBytes   = 128
	ClientVictims        = 1152
	ClientDrawn          = 1408
	DefaultClientRecords = 1024 // 2 MiB of table: 8 ranks x 64 workers x 2 loaders
)

// Kinds of client.
const (
	KindGo     = 1
	KindC      = 2
	KindPython = 3
	KindServer = 4
)

// Counter is the position of a counter in a stripe.
type Counter int

// The counters, in their order in a stripe. docs/spec/segment.md explains each.
const (
	Hits Counter = iota
	Misses
	Stored
	Exists
	Busy
	Full
	Out
	StoredBytes
	Recovered
	Aborted
	Lost
	Retried
	Corrupt
	Passed
	Evicted
	LoadNS
	CounterCount
)

var counterNames = [CounterCount]string{
	"hits", "misses", "stored", "exists", "busy", "full", "out", "stored_bytes", "recovered", "aborted", "lost",
	"retried", "corrupt", "passed", "evicted", "load_ns",
}

// String returns the counter's name in docs/spec/segment.md.
func (c Counter) String() string { return counterNames[c] }

// Signature mixes all sizes that two builds must agree on. Attach refuses a segment with another
// signature.
func Signature() uint32 {
	text := fmt.Sprintf("header %d control %d record %d claims %d x %d stripes %d x %d index %d sum %d slot %d unit "+
		"%d field %d x %d align %d",
		HeaderBytes, ControlBytes, ClientRecordBytes, ClaimsPerClient, ClaimBytes, CounterStripes, CounterStripeBytes,
		IndexRecordBytes, SumRecordBytes, SlotRecordBytes, UnitBytes, FieldBytes, MaxFields, PayloadAlign)
	return crc32.Checksum([]byte(text), Castagnoli)
}

// Castagnoli is the table of CRC-32C, the only checksum of the format.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The compiler checks that the parts of a client record and of the header do not overlap.
const (
	_ = uint(ClientCounters - (ClientClaims + ClaimsPerClient*ClaimBytes))
	_ = uint(ClientVictims - (ClientCounters + CounterStripes*CounterStripeBytes))
	_ = uint(ClientDrawn - (ClientVictims + ClaimsPerClient*8))
	_ = uint(ClientRecordBytes - (ClientDrawn + 8))
	_ = uint(CounterStripeBytes - 8*CountersPerStripe)
	_ = uint(CountersPerStripe - CounterCount)
	_ = uint(HeaderBytes - (HeaderFields + MaxFields*FieldBytes))
	_ = uint(SpreadOffset - (AllowanceOffset + AllowanceWords*ControlLineBytes))
	_ = uint(LapOffset - (SpreadOffset + ControlLineBytes))
	_ = uint(BelowOffset - (LapOffset + ControlLineBytes))
	_ = uint(ClientsOffset - (BelowOffset + ControlLineBytes))
)
