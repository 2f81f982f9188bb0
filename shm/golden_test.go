package shm

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"flag"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// The tests of Go, C and Python read the golden segment: shm/testdata/golden.seg.gz is the file
// (gzip, because of a hole of 2 MiB), and golden.json describes it. go generate ./shm writes
// both from goldenSegment. A change of either is a change of the format.

var update = flag.Bool("update", false, "write shm/testdata/golden.* again")

// golden is the content of golden.json.
type golden struct {
	Comment       string            `json:"comment"`
	LayoutVersion uint32            `json:"layout_version"`
	Signature     uint32            `json:"signature"`
	SegmentBytes  uint64            `json:"segment_bytes"`
	UUID          string            `json:"uuid"`
	CreatedNS     int64             `json:"created_ns"`
	CreatorUID    uint32            `json:"creator_uid"`
	Flags         uint32            `json:"flags"`
	Policy        string            `json:"policy"`
	Samples       uint64            `json:"samples"`
	Slots         uint64            `json:"slots"`
	SampleBytes   uint64            `json:"sample_bytes"`
	SlotStride    uint64            `json:"slot_stride"`
	ClientRecords uint32            `json:"client_records"`
	IndexOffset   uint64            `json:"index_offset"`
	SlotTable     uint64            `json:"slot_table_offset"`
	PayloadOffset uint64            `json:"payload_offset"`
	PayloadBytes  uint64            `json:"payload_bytes"`
	LimitBytes    uint64            `json:"limit_bytes"`
	Fingerprint   string            `json:"fingerprint"`
	Name          string            `json:"name"`
	Fields        []goldenField     `json:"fields"`
	Phase         goldenPhase       `json:"phase"`
	FreeFrom      goldenFreeFrom    `json:"free_from"`
	ClientsHigh   uint64            `json:"clients_high"`
	Index         []goldenSample    `json:"index"`
	SlotSamples   []uint64          `json:"slot_table"`
	Clients       []goldenClient    `json:"clients"`
	Sums          map[string]uint64 `json:"counter_sums"`
}

type goldenField struct {
	Name   string   `json:"name"`
	DType  string   `json:"dtype"`
	Dims   []uint64 `json:"dims"`
	Offset uint64   `json:"offset"`
	Bytes  uint64   `json:"bytes"`
}

type goldenPhase struct {
	Clearing bool   `json:"clearing"`
	Owner    uint32 `json:"owner"`
	Epoch    uint64 `json:"epoch"`
}

type goldenFreeFrom struct {
	Seq  uint32 `json:"seq"`
	From uint32 `json:"from"`
}

type goldenSample struct {
	State      string `json:"state"`
	Owner      uint32 `json:"owner"`
	Generation uint64 `json:"generation"`
	Place      uint64 `json:"place"` // slot + 1
	CRC        uint32 `json:"crc"`
	Fills      uint32 `json:"fills"`
	Bytes      string `json:"bytes,omitempty"` // hexadecimal, of a READY sample
}

type goldenClient struct {
	PID           uint32        `json:"pid"`
	Kind          uint32        `json:"kind"`
	Registrations uint64        `json:"registrations"`
	Label         string        `json:"label"`
	Claims        []goldenClaim `json:"claims"` // those in use
}

type goldenClaim struct {
	Entry  int    `json:"entry"`
	Sample uint64 `json:"sample"`
	Intent uint64 `json:"intent"`
}

// goldenSegment makes the segment on the heap: 5 slots for 8 samples of two fields. Three samples
// are READY, one of them with the last generation and the largest number of fills. One is WRITING,
// of a client that died after it took its slot. One was emptied nine times.
func goldenSegment(t *testing.T) *Segment {
	t.Helper()
	s, err := NewHeap(Options{Samples: 8, Slots: 5, ClientRecords: 2, Fingerprint: "golden fingerprint",
		Fields: []Field{{Name: "image", DType: Uint8, Dims: []uint64{2, 3}}, {Name: "label", DType: Int64}}})
	fatal.If(t, err)
	h := &s.Header
	h.Name, h.Flags, h.UID, h.Limit = "golden", h.Flags|FlagNamed, 1000, 4<<20
	s.Flags = h.Flags
	for k := range h.UUID {
		h.UUID[k] = byte(k)*17 ^ 0x5a
	}
	h.Created = time.Unix(1_700_000_000, 123_456_789)
	copy(s.control, h.Encode(&s.Geometry))

	layout := s.WordLayout()
	s.Phase().Store(uint64(OpenPhase(2)))
	s.FreeFrom().Store(uint64(NewFreeFrom(3, 4)))
	s.ClientsHigh().Store(2)
	for _, r := range []struct {
		sample, generation, slot uint64
		fills                    uint32
	}{{0, 0, 2, 1}, {3, 5, 0, 4}, {7, layout.GenerationMask(), 1, 1<<24 - 1}} {
		sample := make([]byte, s.Header.SampleBytes) // bytes 6 and 7 are a gap
		for k := range 6 {
			sample[k] = byte(10*r.sample) + byte(k)
		}
		sample[8], sample[15] = byte(r.sample), 0x80 // a negative label
		fatal.Value(s.WritePayload(sample, r.slot*s.SlotStride))(t)
		s.Meta(r.sample).Store(uint64(NewMeta(crc32.Checksum(sample, Castagnoli), r.fills)))
		s.Word(r.sample).Store(uint64(layout.Pack(Ready, 0, r.generation, r.slot+1)))
		s.SlotSample(r.slot).Store(r.sample + 1)
	}
	s.Word(4).Store(uint64(layout.Pack(Writing, 2, 1, 4)))
	s.SlotSample(3).Store(5)
	fatal.Value(s.WritePayload([]byte("half a sam"), 3*s.SlotStride))(t)
	sample, intent := s.Claim(1, 0)
	sample.Store(5)
	intent.Store(4)
	s.Word(1).Store(uint64(layout.Pack(Empty, 0, 9, 0)))
	for k, c := range []struct {
		pid, kind, registrations uint64
		label                    string
	}{{0, KindGo, 3, "golden writer"}, {4242, KindPython, 1, "dead worker"}} {
		r := uint32(k)
		s.ClientWord(r, ClientPID).Store(c.pid | c.kind<<32)
		s.ClientWord(r, ClientRegistrations).Store(c.registrations)
		copy(s.control[s.recordOffset(r)+ClientLabel:], c.label)
		for counter := range CounterCount {
			for stripe := range CounterStripes {
				s.Counter(r, stripe, counter).Store(uint64(1+counter) * uint64(1+stripe) * uint64(1+k))
			}
		}
	}
	return s
}

// describeGolden reads all values back through the accessors.
func describeGolden(s *Segment) golden {
	h := &s.Header
	g := golden{"What shm/testdata/golden.seg.gz means, once unpacked. Generated by go generate ./shm. Owners 1 and 2 are dead: nobody holds their locks.", h.Version, Signature(),
		s.SegmentBytes, hex.EncodeToString(h.UUID[:]), h.Created.UnixNano(), h.UID, h.Flags, s.Policy.String(), s.Samples, s.Slots, h.SampleBytes, s.SlotStride, s.ClientRecords,
		s.IndexOffset, s.SlotTableOffset, s.PayloadOffset, s.PayloadBytes, h.Limit, h.Fingerprint, h.Name, nil, goldenPhase{}, goldenFreeFrom{},
		s.ClientsHigh().Load(), nil, nil, nil, map[string]uint64{}}
	for _, f := range h.Fields {
		g.Fields = append(g.Fields, goldenField{f.Name, f.DType.String(), append([]uint64{}, f.Dims...), f.Offset, f.Bytes})
	}
	phase, free := Phase(s.Phase().Load()), FreeFrom(s.FreeFrom().Load())
	g.Phase = goldenPhase{phase.Clearing(), phase.Owner(), phase.Epoch()}
	g.FreeFrom = goldenFreeFrom{free.Seq(), free.From()}
	layout := s.WordLayout()
	for i := range s.Samples {
		w, m := Word(s.Word(i).Load()), Meta(s.Meta(i).Load())
		v := goldenSample{[]string{"EMPTY", "WRITING", "READY"}[w.State()], w.Owner(), layout.Generation(w),
			layout.Place(w), m.Content(), m.Fills(), ""}
		if w.State() == Ready {
			v.Bytes = hex.EncodeToString(s.Bytes((layout.Place(w)-1)*s.SlotStride, h.SampleBytes))
		}
		g.Index = append(g.Index, v)
	}
	for k := range s.Slots {
		g.SlotSamples = append(g.SlotSamples, s.SlotSample(k).Load())
	}
	for r := range s.ClientRecords {
		pid := s.ClientWord(r, ClientPID).Load()
		label := s.control[s.recordOffset(r)+ClientLabel:][:ClientLabelBytes]
		c := goldenClient{uint32(pid), uint32(pid >> 32), s.ClientWord(r, ClientRegistrations).Load(), text(label),
			[]goldenClaim{}}
		for e := range ClaimsPerClient {
			if sample, intent := s.Claim(r, e); sample.Load() != 0 || intent.Load() != 0 {
				c.Claims = append(c.Claims, goldenClaim{e, sample.Load() - 1, intent.Load()})
			}
		}
		g.Clients = append(g.Clients, c)
		for counter := range CounterCount {
			for stripe := range CounterStripes {
				g.Sums[counter.String()] += s.Counter(r, stripe, counter).Load()
			}
		}
	}
	return g
}

// Ensure that the golden segment reads as golden.json says, from a file, and that making it
// again gives the same bytes.
func TestGolden(t *testing.T) {
	const segmentFile, textFile = "testdata/golden.seg.gz", "testdata/golden.json"
	made := goldenSegment(t)
	image := append(bytes.Clone(made.control), make([]byte, made.SegmentBytes-made.PayloadOffset)...)
	copy(image[made.PayloadOffset:], made.payload)
	if *update {
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		z.Write(image)
		fatal.If(t, z.Close())
		description := fatal.Value(json.MarshalIndent(describeGolden(made), "", "  "))(t)
		files := map[string][]byte{segmentFile: packed.Bytes(), textFile: append(description, '\n')}
		if _, err := os.Stat(segmentFile); err == nil && bytes.Equal(unpackGolden(t), image) {
			delete(files, segmentFile) // another version of gzip packs it differently
		}
		for name, content := range files {
			fatal.If(t, os.WriteFile(name, content, 0o644))
		}
	}

	kept := unpackGolden(t)
	if !bytes.Equal(kept, image) {
		k := 0
		for k < min(len(kept), len(image)) && kept[k] == image[k] {
			k++
		}
		t.Fatalf("%s (%d bytes) and what the code makes (%d) differ from byte %d on: the format has changed", segmentFile,
			len(kept), len(image), k)
	}
	path := filepath.Join(t.TempDir(), "golden")
	fatal.If(t, os.WriteFile(path, kept, 0o600))
	s := fatal.Value(Open(path, OpenOptions{Fingerprint: "golden fingerprint"}))(t)
	defer s.Close()
	var want golden
	description := fatal.Value(os.ReadFile(textFile))(t)
	fatal.If(t, json.Unmarshal(description, &want))
	got := describeGolden(s)
	if !reflect.DeepEqual(got, want) {
		a, _ := json.MarshalIndent(got, "", "  ")
		t.Fatalf("%s reads as\n%s\n%s says otherwise", segmentFile, a, textFile)
	}
	for i, sample := range got.Index {
		if content, _ := hex.DecodeString(sample.Bytes); sample.State == "READY" && crc32.Checksum(content, Castagnoli) != sample.CRC {
			t.Errorf("sample %d: checksum %#x, bytes %s", i, sample.CRC, sample.Bytes)
		}
	}
}

// unpackGolden returns the golden segment's file.
func unpackGolden(t testing.TB) []byte {
	t.Helper()
	packed := fatal.Value(os.Open("testdata/golden.seg.gz"))(t)
	defer packed.Close()
	z := fatal.Value(gzip.NewReader(packed))(t)
	image := fatal.Value(io.ReadAll(z))(t)
	return image
}
