package shm

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// row is a row of a table in docs/spec/segment.md.
type row struct{ cells []string }

// tables returns the rows of all tables under each heading of docs/spec/segment.md, without header
// rows.
func tables(t *testing.T) map[string][]row {
	t.Helper()
	text := fatal.Value(os.ReadFile("../docs/spec/segment.md"))(t)
	found, heading, started := map[string][]row{}, "", false
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "## "):
			heading, started = strings.TrimPrefix(line, "## "), false
		case strings.HasPrefix(line, "A field, 128 bytes"):
			heading, started = "Field", false
		case strings.HasPrefix(line, "Counters of a stripe"):
			heading, started = "Counters", false
		case strings.HasPrefix(line, "|---"):
			started = true
		case !strings.HasPrefix(line, "|"):
			started = false
		case started:
			var r row
			for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
				r.cells = append(r.cells, strings.Trim(strings.TrimSpace(cell), "`"))
			}
			found[heading] = append(found[heading], r)
		}
	}
	return found
}

// number reads "4,096", "40 x 8" and the like.
func number(t *testing.T, s string) uint64 {
	t.Helper()
	product := uint64(1)
	for _, factor := range strings.Split(strings.ReplaceAll(s, ",", ""), " x ") {
		n, err := strconv.ParseUint(strings.TrimSpace(factor), 10, 64)
		if err != nil {
			t.Fatalf("docs/spec/segment.md: %q is no number", s)
		}
		product *= n
	}
	return product
}

// Ensure that the tables of docs/spec/segment.md have the offsets of the code for all fields of the
// header, of a field record and of a client record, that their
// widths leave no gaps or overlaps, and that neither side lacks a field.
func TestDocumentOffsets(t *testing.T) {
	doc := tables(t)
	for _, c := range []struct {
		heading string
		bytes   uint64
		code    map[string]uint64
	}{
		{"Header, 4,096 bytes at 0", HeaderBytes, map[string]uint64{"magic": HeaderMagic, "layout_version": HeaderVersion, "signature": HeaderSignature,
			"endian_mark": HeaderEndianMark, "header_crc": HeaderCRC, "segment_bytes": HeaderSegmentBytes, "uuid": HeaderUUID, "created_ns": HeaderCreated, "creator_uid": HeaderUID,
			"flags": HeaderFlags, "samples": HeaderSamples, "slots": HeaderSlots, "sample_bytes": HeaderSampleBytes, "slot_stride": HeaderSlotStride,
			"client_records": HeaderClientRecords, "policy": HeaderPolicy, "sums_offset": HeaderSumsOffset, "reference_offset": HeaderReferenceOffset, "groups_offset": HeaderGroupsOffset, "lengths_offset": HeaderLengthsOffset, "index_offset": HeaderIndexOffset, "slot_table_offset": HeaderSlotTableOffset, "payload_offset": HeaderPayloadOffset,
			"payload_bytes": HeaderPayloadBytes, "field_count": HeaderFieldCount, "limit_bytes": HeaderLimitBytes, "fingerprint": HeaderFingerprint, "name": HeaderName, "decode": HeaderDecode, "fields": HeaderFields}},
		{"Field", FieldBytes, map[string]uint64{"name": FieldName, "dtype": FieldDType, "ndim": FieldNDim, "offset": FieldOffset, "bytes": FieldSize, "dims": FieldDims}},
		{"Client record, 2,048 bytes", ClientRecordBytes, map[string]uint64{"pid": ClientPID, "kind": ClientKind, "pid_namespace": ClientPIDNamespace, "start_ticks": ClientStartTicks,
			"registered_ns": ClientRegistered, "registrations": ClientRegistrations, "label": ClientLabel, "claims": ClientClaims, "counters": ClientCounters, "victims": ClientVictims, "drawn": ClientDrawn}},
	} {
		at, seen := uint64(0), map[string]bool{}
		for _, r := range doc[c.heading] {
			offset, width, name := number(t, r.cells[0]), number(t, r.cells[1]), strings.Trim(strings.Fields(r.cells[2])[0], "`")
			expect.Equal(t, offset, at, "%s: where %s is, after the row before", c.heading, name)
			at = offset + width
			if name == "reserved" {
				continue
			}
			if want, ok := c.code[name]; !ok || want != offset {
				t.Errorf("%s: %s is at %d, in the code at %d (known: %v)", c.heading, name, offset, want, ok)
			}
			seen[name] = true
		}
		expect.Equal(t, at, c.bytes, "%s: the end of the table", c.heading)
		for name := range c.code {
			if !seen[name] {
				t.Errorf("%s: %s is not in the table", c.heading, name)
			}
		}
	}
}

// Ensure that the control words, counters, locks, dtypes, flags and states of the document are
// those of the code.
func TestDocumentNumbers(t *testing.T) {
	doc := tables(t)
	control := map[string]uint64{"phase": PhaseOffset, "free_from": FreeFromOffset, "arena_next": ArenaNextOffset,
		"clients_high": ClientsHighOffset, "(no word)": UsersLockByte, "hand": HandOffset,
		"allowance": AllowanceOffset, "spread": SpreadOffset, "lap_reads": LapOffset,
		"lap_evicted": LapOffset + 8, "lap_replaced": LapOffset + 16, "below": BelowOffset,
		"reserved to 8,192": BelowOffset + ControlLineBytes}
	for _, r := range doc["Control, 4,096 bytes at 4,096"] {
		if want, ok := control[r.cells[1]]; !ok || want != number(t, r.cells[0]) {
			t.Errorf("control word %q at %s, in the code at %d", r.cells[1], r.cells[0], want)
		}
		delete(control, r.cells[1])
	}
	expect.Equal(t, len(control), 0, "not in the table: %v", control)

	expect.Equal(t, len(doc["Counters"]), int(CounterCount), "counters in the document")
	for k, r := range doc["Counters"] {
		if r.cells[0] != strconv.Itoa(k) || r.cells[1] != Counter(k).String() {
			t.Errorf("counter %s is %q in the document; in the code %d is %q", r.cells[0], r.cells[1], k, Counter(k))
		}
	}
	for _, r := range doc["Client record, 2,048 bytes"] {
		if r.cells[2] == "counters" && r.cells[1] != "4 x 128" || r.cells[2] == "claims" && r.cells[1] != "32 x 16" {
			t.Errorf("%s: %s", r.cells[2], r.cells[1])
		}
	}
	text := fatal.Value(os.ReadFile("../docs/spec/segment.md"))(t)

	dtypes := regexp.MustCompile(`(\d+) (bytes|bool|u?int\d+|b?float\d+|complex\d+)\b`).FindAllStringSubmatch(doc["Field"][1].cells[3], -1)
	expect.Equal(t, len(dtypes), int(dtypeCount), "dtypes of the document, of %d in the code", dtypeCount)
	for _, m := range dtypes {
		k, _ := strconv.Atoi(m[1])
		if DType(k).String() != m[2] {
			t.Errorf("dtype %d is %q in the document, %q in the code", k, m[2], DType(k))
		}
	}

	for _, r := range doc["Header, 4,096 bytes at 0"] {
		if r.cells[2] != "flags" {
			continue
		}
		for name, flag := range map[string]uint32{"variable": FlagVariable, "unlink_last": FlagUnlinkLast,
			"reserved": FlagReserved, "named": FlagNamed, "programs": FlagPrograms, "lengths": FlagLengths} {
			m := regexp.MustCompile("bit (\\d) `" + name + "`").FindStringSubmatch(r.cells[3])
			if m == nil {
				t.Errorf("flag %s is not in the document", name)
			} else if bit, _ := strconv.Atoi(m[1]); 1<<bit != flag {
				t.Errorf("flag %s is bit %d in the document, %#x in the code", name, bit, flag)
			}
		}
	}

	for _, r := range doc["Locks on the file"] {
		switch r.cells[1] + " " + r.cells[0] {
		case "shared 4,096", "exclusive 4,097", "exclusive first byte of client record r":
		default:
			t.Errorf("lock %v", r.cells)
		}
	}
	for _, claim := range []string{"bytes                      mapped",
		"8,192              client table    client_records x 2,048", "samples x 16", "samples x 8", "slots x 8",
		"content 32, fills 24, cost 8", "left 16 (low)",
		"0 EMPTY, 1 WRITING, 2 READY", "state 3, owner 12, generation 17, place 32", "state 3, owner 12, generation 13, place 36", "first unit in the low 36 bits", "32 entries of two words"} {
		expect.Says(t, string(text), claim)
	}
}
