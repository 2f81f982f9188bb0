package shm

import "fmt"

// Geometry says where each region of a segment lies. Seven numbers determine it. Attach computes it
// again and refuses a header that differs.
type Geometry struct {
	Flags           uint32
	Policy          Policy // not PolicyFirstIndices in a variable-size cache
	Samples         uint64
	Slots           uint64 // 0 in a variable-size cache that does not evict
	SlotStride      uint64 // bytes from slot to slot; 64 in a variable-size cache that does not evict
	ClientRecords   uint32
	PayloadBytes    uint64
	IndexOffset     uint64
	SumsOffset      uint64 // 0: no table of checksums
	LengthsOffset   uint64 // 0: no lengths of lists
	SlotTableOffset uint64 // 0: no slot table
	ReferenceOffset uint64 // 0: no reference bytes
	GroupsOffset    uint64 // 0: no groups of slots
	PayloadOffset   uint64
	SegmentBytes    uint64 // size of the file
}

// Variable says whether samples lie in an arena.
func (g *Geometry) Variable() bool { return g.Flags&FlagVariable != 0 }

// Chains says whether samples differ in size and lie in chains of slots: docs/spec/arena-eviction.md.
func (g *Geometry) Chains() bool { return g.Variable() && g.Policy.Evicts() }

// HasSlotTable says whether any sample may have any slot, so that a table names the sample of each.
// It is false for a variable-size cache without slots.
func (g *Geometry) HasSlotTable() bool {
	return g.Policy != PolicyFirstIndices && (!g.Variable() || g.Chains())
}

// SampleSlots is how many samples fit, one in each slot; 0 in a variable-size cache.
func (g *Geometry) SampleSlots() uint64 {
	if g.Variable() {
		return 0
	}
	return g.Slots
}

// Fits is about how many samples fit, if stored samples have so many bytes together. 0, 0: it is unknown how
// long they are; then an arena that evicts counts 32 slots for each. 0: an arena that does not evict.
func (g *Geometry) Fits(stored, bytes uint64) uint64 {
	switch {
	case !g.Chains():
		return g.SampleSlots()
	case stored == 0 || bytes == 0:
		return max(g.Slots/32, 1)
	}
	return max(g.PayloadBytes/max(bytes/stored, 1), 1)
}

// Groups is the number of groups of slots. Only if Chains.
func (g *Geometry) Groups() uint64 { return (g.Slots + GroupSlots - 1) / GroupSlots }

// Units is the number of 64-byte units of an arena.
func (g *Geometry) Units() uint64 { return g.PayloadBytes / UnitBytes }

// NewGeometry computes the regions of a segment. It ignores payloadBytes of a fixed-size cache,
// which is slots x stride. It fails when a number is outside the limits of the format, so that no
// offset overflows.
func NewGeometry(flags uint32, policy Policy, samples, slots, stride uint64, clientRecords uint32,
	payloadBytes uint64) (Geometry, error) {
	g := Geometry{Flags: flags, Policy: policy, Samples: samples, Slots: slots, SlotStride: stride,
		ClientRecords: clientRecords, PayloadBytes: payloadBytes}
	switch {
	case samples < 1 || samples > MaxSamples:
		return g, fmt.Errorf("samples %d is not in 1..%d", samples, uint64(MaxSamples))
	case clientRecords < 1 || clientRecords > MaxClientRecords:
		return g, fmt.Errorf("client records %d is not in 1..%d", clientRecords, MaxClientRecords)
	case stride < 1 || stride > MaxSampleBytes+16:
		return g, fmt.Errorf("slot stride %d is not in 1..%d", stride, uint64(MaxSampleBytes+16))
	}
	if policy != PolicyFirstCome && !policy.Evicts() && (policy != PolicyFirstIndices || g.Variable()) {
		return g, fmt.Errorf("policy %d of a segment with the flags %#x", policy, flags)
	}
	if flags&FlagLengths != 0 && !g.Variable() {
		return g, fmt.Errorf("lengths in a segment with the flags %#x: only variable-size ones have them", flags)
	}
	if g.Chains() {
		switch {
		case samples > MaxChainSamples:
			return g, fmt.Errorf("samples %d of an arena that evicts are not in 1..%d", samples,
				uint64(MaxChainSamples))
		case slots < 1 || slots > MaxSlots:
			return g, fmt.Errorf("slots %d are not in 1..%d", slots, uint64(MaxSlots))
		case stride < UnitBytes || stride > MaxChainStride || stride&(stride-1) != 0:
			return g, fmt.Errorf("slot stride %d is not a power of two in %d..%d", stride, UnitBytes, MaxChainStride)
		}
		g.PayloadBytes = slots * stride // below 2^53
		if g.PayloadBytes > MaxArenaBytes-UnitBytes {
			return g, fmt.Errorf("arena of %d bytes is larger than %d", g.PayloadBytes, uint64(MaxArenaBytes-UnitBytes))
		}
	} else if g.Variable() {
		switch {
		case slots != 0 || stride != UnitBytes:
			return g, fmt.Errorf("a variable-size segment with slots %d, stride %d: must be 0, %d", slots, stride, UnitBytes)
		case payloadBytes < UnitBytes || payloadBytes%UnitBytes != 0 || payloadBytes > MaxArenaBytes-UnitBytes:
			return g, fmt.Errorf("arena of %d bytes is not a multiple of %d in %d..%d", payloadBytes, UnitBytes,
				UnitBytes, uint64(MaxArenaBytes-UnitBytes))
		}
	} else {
		if slots < 1 || slots > MaxSlots || slots > samples {
			return g, fmt.Errorf("slots %d is not in 1..%d (samples)", slots, min(samples, MaxSlots))
		}
		g.PayloadBytes = slots * stride // below 2^32 x 2^32.1; the next line checks for overflow
		if g.PayloadBytes/stride != slots || g.PayloadBytes > 1<<56 {
			return g, fmt.Errorf("%d slots of %d bytes are more than 2^56 bytes", slots, stride)
		}
	}
	g.IndexOffset = roundUp(ClientsOffset+uint64(clientRecords)*ClientRecordBytes, RegionAlign)
	end := g.IndexOffset + samples*IndexRecordBytes
	if g.Variable() {
		g.SumsOffset = roundUp(end, RegionAlign)
		end = g.SumsOffset + samples*SumRecordBytes
	}
	if flags&FlagLengths != 0 {
		g.LengthsOffset = roundUp(end, RegionAlign)
		end = g.LengthsOffset + samples*LengthBytes
	}
	if g.HasSlotTable() {
		g.SlotTableOffset = roundUp(end, RegionAlign)
		end = g.SlotTableOffset + slots*SlotRecordBytes
	}
	if policy.References() {
		g.ReferenceOffset = roundUp(end, RegionAlign)
		end = roundUp(g.ReferenceOffset+slots, 8)
	}
	if g.Chains() {
		g.GroupsOffset = roundUp(end, RegionAlign)
		end = g.GroupsOffset + g.Groups()*GroupRecordBytes
	}
	g.PayloadOffset = roundUp(end, PayloadAlign)
	g.SegmentBytes = roundUp(g.PayloadOffset+g.PayloadBytes, RegionAlign)
	return g, nil
}

// roundUp returns the least multiple of align, a power of two, that is not below n.
func roundUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }
