package shm

import "sync/atomic"

// Region is typed access to the words of one segment, mapped or on the heap. It checks nothing: the
// callers in cache/ MUST check that indices are in range, once for each operation.
//
// All access to words goes through the atomics returned here, never through the byte slices.
type Region struct {
	Geometry
	control []byte // [0, PayloadOffset), read-write
	payload []byte // PayloadBytes, read-only when mapped
}

// Phase is the word that a clear changes.
func (r *Region) Phase() *atomic.Uint64 { return word(r.control, PhaseOffset) }

// FreeFrom is the word that says where the search for a free slot begins.
func (r *Region) FreeFrom() *atomic.Uint64 { return word(r.control, FreeFromOffset) }

// ArenaNext is the word of the bump allocator.
func (r *Region) ArenaNext() *atomic.Uint64 { return word(r.control, ArenaNextOffset) }

// ClientsHigh is the number of client records that clients have used so far.
func (r *Region) ClientsHigh() *atomic.Uint64 { return word(r.control, ClientsHighOffset) }

// Word is the index word of a sample.
func (r *Region) Word(sample uint64) *atomic.Uint64 {
	return word(r.control, r.IndexOffset+sample*IndexRecordBytes)
}

// Meta is the second word of a sample's index record.
func (r *Region) Meta(sample uint64) *atomic.Uint64 {
	return word(r.control, r.IndexOffset+sample*IndexRecordBytes+8)
}

// Sum is the checksum of a sample. Only if Variable.
func (r *Region) Sum(sample uint64) *atomic.Uint64 {
	return word(r.control, r.SumsOffset+sample*SumRecordBytes)
}

// Items is the word with the length of a sample that is a list. Only with FlagLengths.
func (r *Region) Items(sample uint64) *atomic.Uint64 {
	return word(r.control, r.LengthsOffset+sample*LengthBytes)
}

// Grant is the word of the allowance that a group of clients uses.
func (r *Region) Grant(group uint32) *atomic.Uint64 {
	return word(r.control, AllowanceOffset+uint64(group%AllowanceWords)*ControlLineBytes)
}

// Drawn is the number of bytes that a client has drawn and not settled.
func (r *Region) Drawn(record uint32) *atomic.Uint64 { return r.ClientWord(record, ClientDrawn) }

// SlotSample is the word of a slot in the slot table: sample + 1 of its holder, or with Chains a Link.
// Only if HasSlotTable.
func (r *Region) SlotSample(slot uint64) *atomic.Uint64 {
	return word(r.control, r.SlotTableOffset+slot*SlotRecordBytes)
}

// Group is the word of a group of slots: a FreeFrom, counted from the group's first slot. Only if Chains.
func (r *Region) Group(group uint64) *atomic.Uint64 {
	return word(r.control, r.GroupsOffset+group*GroupRecordBytes)
}

// Claim returns the two words of a claim entry: sample + 1, and the intent.
func (r *Region) Claim(record uint32, entry int) (sample, intent *atomic.Uint64) {
	at := r.recordOffset(record) + ClientClaims + uint64(entry)*ClaimBytes
	return word(r.control, at), word(r.control, at+8)
}

// Victim is the word of a claim entry that names the sample which gives up its slot, + 1; 0: none.
func (r *Region) Victim(record uint32, entry int) *atomic.Uint64 {
	return word(r.control, r.recordOffset(record)+ClientVictims+uint64(entry)*8)
}

// Hand is the word that counts the looks at slots of all searches for a victim.
func (r *Region) Hand() *atomic.Uint64 { return word(r.control, HandOffset) }

// Spread is the word that says how the costs of all loads are spread.
func (r *Region) Spread() *atomic.Uint64 { return word(r.control, SpreadOffset) }

// Lap returns the words of the present lap: the reads and the evictions of all clients when it began, and what the
// lap before has replaced.
func (r *Region) Lap() (reads, evicted, replaced *atomic.Uint64) {
	return word(r.control, LapOffset), word(r.control, LapOffset+8), word(r.control, LapOffset+16)
}

// Below is the word that says how many samples the disk tiers of the server hold.
func (r *Region) Below() *atomic.Uint64 { return word(r.control, BelowOffset) }

// Reference returns the reference byte of a slot. Only if Policy.References.
func (r *Region) Reference(slot uint64) uint8 {
	at := r.ReferenceOffset + slot
	return uint8(word(r.control, at&^7).Load() >> (at % 8 * 8))
}

// SetReference stores the reference byte of a slot, unless one of its eight neighbours changes at the
// same time: reference bytes are advice. Go has no atomic bytes.
func (r *Region) SetReference(slot uint64, b uint8) {
	at := r.ReferenceOffset + slot
	shift := at % 8 * 8
	w := word(r.control, at&^7)
	old := w.Load()
	w.CompareAndSwap(old, old&^(0xff<<shift)|uint64(b)<<shift)
}

// Counter is one counter of one stripe of a client record.
func (r *Region) Counter(record uint32, stripe int, c Counter) *atomic.Uint64 {
	return word(r.control, r.recordOffset(record)+ClientCounters+uint64(stripe)*CounterStripeBytes+uint64(c)*8)
}

// RecordsUsed returns the number of client records that clients have used so far.
func (r *Region) RecordsUsed() uint32 {
	return uint32(min(r.ClientsHigh().Load(), uint64(r.ClientRecords)))
}

// Count returns a counter of a client record: the sum of its stripes.
func (r *Region) Count(record uint32, c Counter) (n uint64) {
	for stripe := range CounterStripes {
		n += r.Counter(record, stripe, c).Load()
	}
	return n
}

// ClientWord is a 64-bit word of a client record, at one of the Client... offsets that are
// multiples of 8. ClientPID shares its word with ClientKind: pid in the low half.
func (r *Region) ClientWord(record uint32, offset uint64) *atomic.Uint64 {
	return word(r.control, r.recordOffset(record)+offset)
}

// Bytes returns length bytes of the payload from offset on: memory of the segment, read-only when
// it is mapped. The capacity ends with the slice, so append cannot write into the next sample.
func (r *Region) Bytes(offset, length uint64) []byte {
	return r.payload[offset : offset+length : offset+length]
}

func (r *Region) recordOffset(record uint32) uint64 {
	return ClientsOffset + uint64(record)*ClientRecordBytes
}

// RecordLockByte is the byte of the file whose write lock makes its holder the client of a record.
func RecordLockByte(record uint32) int64 { return ClientsOffset + int64(record)*ClientRecordBytes }
