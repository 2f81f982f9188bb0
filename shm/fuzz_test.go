package shm

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// FuzzAttach attaches to files with a mutated header page and length; with fix the checksum is
// correct. A refused file must give one of the attach errors. For an accepted file the first and
// last word and byte of each region must be accessible. Run it with
// go test ./shm -run '^$' -fuzz FuzzAttach -fuzzminimizetime 10x (without the last option it mostly
// minimises).
func FuzzAttach(f *testing.F) {
	for _, o := range []Options{
		{Samples: 8, Slots: 5, SampleBytes: 16, ClientRecords: 2},
		{Samples: 8, SampleBytes: 16, ClientRecords: 1, Policy: PolicyFirstIndices, Name: "named", UnlinkLast: true},
		{Samples: 3, Variable: true, Limit: 8 << 20, Fingerprint: "f"},
		{Samples: 9, Fields: []Field{{Name: "image", DType: Uint8, Dims: []uint64{2, 3}}, {Name: "label", DType: Int64}},
			Fingerprint: "g"},
	} {
		h, g, err := o.Plan()
		fatal.If(f, err)
		h.Stamp()
		page := h.Encode(&g)
		f.Add(page, g.SegmentBytes, true)
		f.Add(page, g.SegmentBytes, false)
		f.Add(page[:100], uint64(100), true)
		binary.LittleEndian.PutUint32(page[HeaderVersion:], 7)
		f.Add(page, g.SegmentBytes, true)
	}
	f.Fuzz(func(t *testing.T, page []byte, length uint64, fix bool) {
		if fix && len(page) >= HeaderBytes {
			copy(page, Magic)
			binary.LittleEndian.PutUint32(page[HeaderVersion:], LayoutVersion)
			binary.LittleEndian.PutUint32(page[HeaderSignature:], Signature())
			binary.LittleEndian.PutUint32(page[HeaderEndianMark:], EndianMark)
			refix(page)
		}
		length = max(length%(1<<40), uint64(len(page))) // sparse: costs nothing
		fd := fatal.Value(unix.MemfdCreate("stoctest", unix.MFD_CLOEXEC))(t)
		file := os.NewFile(uintptr(fd), "fuzz")
		defer file.Close()
		fatal.Value(file.WriteAt(page, 0))(t)
		fatal.If(t, file.Truncate(int64(length)))
		s, err := OpenFD(fd, OpenOptions{})
		if err != nil {
			if code := Code(err); code != Code(ErrFormat) && code != Code(ErrVersion) && code != Code(ErrMemory) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		defer s.Close()
		if got := s.Header.Encode(&s.Geometry); string(got) != string(page[:HeaderBytes]) {
			t.Fatal("accepted a header that is not what it would be")
		}
		for _, w := range []interface{ Add(uint64) uint64 }{s.Phase(), s.FreeFrom(), s.ArenaNext(), s.ClientsHigh(),
			s.Word(0), s.Word(s.Samples - 1), s.Meta(s.Samples - 1),
			s.ClientWord(0, 0), s.Counter(s.ClientRecords-1, CounterStripes-1, CounterCount-1)} {
			w.Add(1)
		}
		_, intent := s.Claim(s.ClientRecords-1, ClaimsPerClient-1)
		intent.Add(1)
		s.Grant(AllowanceWords - 1).Add(1)
		s.Drawn(s.ClientRecords - 1).Add(1)
		if s.Variable() {
			s.Sum(0).Add(1)
			s.Sum(s.Samples - 1).Add(1)
		}
		if s.HasSlotTable() {
			s.SlotSample(0).Add(1)
			s.SlotSample(s.Slots - 1).Add(1)
		}
		b := s.Bytes(s.PayloadBytes-1, 1)
		if _, err := s.WritePayload([]byte{7}, s.PayloadBytes-1); err != nil || b[0] != 7 {
			t.Fatal(err, b[0])
		}
		if s.Slots != 0 && (s.Slots-1)*s.SlotStride+s.Header.SampleBytes > s.PayloadBytes {
			t.Fatal("the last slot leads outside")
		}
		for _, field := range s.Header.Fields {
			if s.Slots != 0 && field.Offset+field.Bytes > s.Header.SampleBytes {
				t.Fatal(fmt.Sprint("a field leads outside: ", field))
			}
		}
	})
}
