// Command layoutheader writes the C header of the segment's layout from the constants of package shm,
// and what other languages and documents have of its options (go generate ./shm).
package main

import (
	"bytes"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"
	"github.com/stocached/stocached/shm/memory"
)

func main() {
	for path, write := range generated {
		old, err := os.ReadFile(path)
		if err == nil || os.IsNotExist(err) {
			err = os.WriteFile(path, []byte(write(string(old))), 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

func header() []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, "/* Generated from shm/layout.go by go generate ./shm; do not edit. docs/spec/segment.md "+
		"explains it. */\n"+
		"#ifndef STOCACHED_LAYOUT_H\n#define STOCACHED_LAYOUT_H\n\n")
	fmt.Fprintf(&b, "#define STOC_MAGIC \"%s\"\n", shm.Magic)
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"LAYOUT_VERSION", shm.LayoutVersion}, {"SIGNATURE", uint64(shm.Signature())},
		{"ENDIAN_MARK", shm.EndianMark},
		{"HEADER_BYTES", shm.HeaderBytes}, {"CONTROL_OFFSET", shm.ControlOffset}, {"CONTROL_BYTES", shm.ControlBytes},
		{"CLIENTS_OFFSET", shm.ClientsOffset}, {"REGION_ALIGN", shm.RegionAlign}, {"PAYLOAD_ALIGN", shm.PayloadAlign},
		{"INDEX_RECORD_BYTES", shm.IndexRecordBytes}, {"SUM_RECORD_BYTES", shm.SumRecordBytes}, {"LENGTH_BYTES", shm.LengthBytes},
		{"SLOT_RECORD_BYTES", shm.SlotRecordBytes}, {"UNIT_BYTES", shm.UnitBytes},
		{"MAX_CLIENT_RECORDS", shm.MaxClientRecords}, {"MAX_CHAIN_SAMPLES", shm.MaxChainSamples}, {"MAX_CHAIN_STRIDE", shm.MaxChainStride},
		{"GROUP_RECORD_BYTES", shm.GroupRecordBytes}, {"GROUP_SLOTS", shm.GroupSlots},
		{"MAX_SLOTS", shm.MaxSlots}, {"MAX_SAMPLES", shm.MaxSamples},
		{"MAX_SAMPLE_BYTES", shm.MaxSampleBytes}, {"MAX_ITEMS", shm.MaxItems}, {"MAX_ARENA_BYTES", shm.MaxArenaBytes},
		{"MAX_FIELDS", shm.MaxFields}, {"MAX_DIMS", shm.MaxDims},
		{"FIELD_NAME_BYTES", shm.FieldNameBytes}, {"FINGERPRINT_BYTES", shm.FingerprintBytes},
		{"NAME_BYTES", shm.NameBytes}, {"DECODE_BYTES", shm.DecodeBytes},
		{"DISK_SESSION", shm.DiskSession}, {"DISK_PID", shm.DiskPID}, {"DISK_KIND", shm.DiskKind},
		{"DISK_LABEL", shm.DiskLabel}, {"DISK_SESSION_BYTES", shm.DiskSessionBytes},
		{"HEADER_MAGIC", shm.HeaderMagic}, {"HEADER_VERSION", shm.HeaderVersion},
		{"HEADER_SIGNATURE", shm.HeaderSignature},
		{"HEADER_ENDIAN_MARK", shm.HeaderEndianMark}, {"HEADER_CRC", shm.HeaderCRC},
		{"HEADER_SEGMENT_BYTES", shm.HeaderSegmentBytes}, {"HEADER_UUID", shm.HeaderUUID},
		{"HEADER_CREATED", shm.HeaderCreated}, {"HEADER_UID", shm.HeaderUID}, {"HEADER_FLAGS", shm.HeaderFlags},
		{"HEADER_SAMPLES", shm.HeaderSamples},
		{"HEADER_SLOTS", shm.HeaderSlots}, {"HEADER_SAMPLE_BYTES", shm.HeaderSampleBytes},
		{"HEADER_SLOT_STRIDE", shm.HeaderSlotStride},
		{"HEADER_CLIENT_RECORDS", shm.HeaderClientRecords}, {"HEADER_POLICY", shm.HeaderPolicy},
		{"HEADER_INDEX_OFFSET", shm.HeaderIndexOffset}, {"HEADER_SLOT_TABLE_OFFSET", shm.HeaderSlotTableOffset},
		{"HEADER_PAYLOAD_OFFSET", shm.HeaderPayloadOffset}, {"HEADER_PAYLOAD_BYTES", shm.HeaderPayloadBytes},
		{"HEADER_FIELD_COUNT", shm.HeaderFieldCount},
		{"HEADER_LIMIT_BYTES", shm.HeaderLimitBytes}, {"HEADER_SUMS_OFFSET", shm.HeaderSumsOffset},
		{"HEADER_REFERENCE_OFFSET", shm.HeaderReferenceOffset}, {"HEADER_GROUPS_OFFSET", shm.HeaderGroupsOffset},
		{"HEADER_LENGTHS_OFFSET", shm.HeaderLengthsOffset},
		{"HEADER_FINGERPRINT", shm.HeaderFingerprint},
		{"HEADER_NAME", shm.HeaderName}, {"HEADER_DECODE", shm.HeaderDecode},
		{"HEADER_FIELDS", shm.HeaderFields},
		{"FIELD_BYTES", shm.FieldBytes}, {"FIELD_NAME", shm.FieldName}, {"FIELD_DTYPE", shm.FieldDType},
		{"FIELD_NDIM", shm.FieldNDim},
		{"FIELD_OFFSET", shm.FieldOffset}, {"FIELD_SIZE", shm.FieldSize}, {"FIELD_DIMS", shm.FieldDims},
		{"FLAG_VARIABLE", shm.FlagVariable}, {"FLAG_UNLINK_LAST", shm.FlagUnlinkLast},
		{"FLAG_RESERVED", shm.FlagReserved}, {"FLAG_NAMED", shm.FlagNamed},
		{"FLAG_PROGRAMS", shm.FlagPrograms}, {"FLAG_LENGTHS", shm.FlagLengths}, {"FLAGS_KNOWN", shm.FlagsKnown},
		{"USERS_LOCK_BYTE", shm.UsersLockByte}, {"SERVER_LOCK_BYTE", shm.ServerLockByte},
		{"PHASE_OFFSET", shm.PhaseOffset}, {"FREE_FROM_OFFSET", shm.FreeFromOffset},
		{"ARENA_NEXT_OFFSET", shm.ArenaNextOffset}, {"CLIENTS_HIGH_OFFSET", shm.ClientsHighOffset},
		{"HAND_OFFSET", shm.HandOffset}, {"ALLOWANCE_OFFSET", shm.AllowanceOffset},
		{"ALLOWANCE_WORDS", shm.AllowanceWords}, {"SPREAD_OFFSET", shm.SpreadOffset}, {"LAP_OFFSET", shm.LapOffset}, {"BELOW_OFFSET", shm.BelowOffset}, {"CONTROL_LINE_BYTES", shm.ControlLineBytes},
		{"CLIENT_RECORD_BYTES", shm.ClientRecordBytes}, {"CLIENT_PID", shm.ClientPID},
		{"CLIENT_KIND", shm.ClientKind}, {"CLIENT_PID_NAMESPACE", shm.ClientPIDNamespace},
		{"CLIENT_START_TICKS", shm.ClientStartTicks}, {"CLIENT_REGISTERED", shm.ClientRegistered},
		{"CLIENT_REGISTRATIONS", shm.ClientRegistrations},
		{"CLIENT_LABEL", shm.ClientLabel}, {"CLIENT_LABEL_BYTES", shm.ClientLabelBytes},
		{"CLIENT_CLAIMS", shm.ClientClaims}, {"CLAIMS_PER_CLIENT", shm.ClaimsPerClient},
		{"CLAIM_BYTES", shm.ClaimBytes}, {"CLIENT_COUNTERS", shm.ClientCounters},
		{"COUNTER_STRIPES", shm.CounterStripes}, {"COUNTERS_PER_STRIPE", shm.CountersPerStripe},
		{"COUNTER_STRIPE_BYTES", shm.CounterStripeBytes}, {"CLIENT_VICTIMS", shm.ClientVictims},
		{"CLIENT_DRAWN", shm.ClientDrawn},
		{"DEFAULT_CLIENT_RECORDS", shm.DefaultClientRecords},
		{"HEADROOM_MAX", memory.HeadroomMax}, {"HEADROOM_DIVISOR", memory.HeadroomDivisor}, {"FLOOR_MIN", memory.FloorMin},
		{"FLOOR_MAX", memory.FloorMax},
		{"FLOOR_DIVISOR", memory.FloorDivisor}, {"GRANT_MAX", memory.GrantMax}, {"GRANT_DIVISOR", memory.GrantDivisor},
		{"FILL_DIVISOR", memory.FillDivisor},
		{"KIND_GO", shm.KindGo}, {"KIND_C", shm.KindC}, {"KIND_PYTHON", shm.KindPython},
		{"KIND_SERVER", shm.KindServer},
		{"WORD_EMPTY", uint64(shm.Empty)}, {"WORD_WRITING", uint64(shm.Writing)}, {"WORD_READY", uint64(shm.Ready)},
		{"WORD_RETIRING", uint64(shm.Retiring)},
		{"WORD_STATE_BITS", shm.StateBits}, {"WORD_OWNER_BITS", shm.OwnerBits},
		{"FIXED_PLACE_SHIFT", shm.FixedPlaceShift}, {"ARENA_PLACE_SHIFT", shm.ArenaPlaceShift},
	} {
		fmt.Fprintf(&b, "#define STOC_%s UINT64_C(%d)\n", c.name, c.value)
	}
	fmt.Fprint(&b, "#define STOC_NETWORK_FILE_SYSTEMS")
	separator := " "
	for _, number := range slices.Sorted(maps.Keys(diskfile.NetworkFileSystems)) {
		fmt.Fprintf(&b, "%s{%d, \"%s\"}", separator, number, diskfile.NetworkFileSystems[number])
		separator = ", "
	}
	fmt.Fprint(&b, "\n\nenum stoc_counter {\n")
	for c := range shm.CounterCount {
		fmt.Fprintf(&b, "    STOC_COUNTER_%s = %d,\n", strings.ToUpper(c.String()), int(c))
	}
	fmt.Fprintf(&b, "    STOC_COUNTER_COUNT = %d\n};\n\n#endif\n", int(shm.CounterCount))
	return b.Bytes()
}
