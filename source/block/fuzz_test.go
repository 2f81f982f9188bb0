package block

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// small writes a small dataset with blocks of several samples in two files.
func small(t testing.TB, c Compression) string {
	t.Helper()
	schema, err := shm.NewSchema([]shm.Field{{Name: "x", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}}, true)
	fatal.If(t, err)
	folder := filepath.Join(t.TempDir(), "set")
	w, err := Create(context.Background(), folder,
		Options{Schema: schema, Compression: c, BlockBytes: 4096, FileBytes: 4096})
	fatal.If(t, err)
	defer w.Close()
	for i := range 6 {
		fatal.If(t, w.Write(bytes.Repeat([]byte{byte(i)}, i*1000)))
	}
	fatal.If(t, w.Finish())
	return folder
}

// With any footer, with a correct checksum or not, a file is refused, or all its records lead into
// the file and samples tile blocks.
func FuzzFooter(f *testing.F) {
	for _, c := range []Compression{None, Zstd} {
		folder := small(f, c)
		files, err := filepath.Glob(filepath.Join(folder, "*.stocblk"))
		if err != nil || len(files) == 0 {
			f.Fatal(files, err)
		}
		for _, path := range files {
			b := fatal.Value(os.ReadFile(path))(f)
			t := fatal.Value(decodeTrailer(b[len(b)-trailerBytes:], int64(len(b))))(f)
			f.Add(b[int64(len(b))-t.footerBytes():], int64(len(b)), c == Zstd)
		}
	}
	f.Fuzz(func(t *testing.T, tail []byte, size int64, compressed bool) {
		if len(tail) < trailerBytes || size < int64(len(tail)) || size > 1<<60 {
			return
		}
		for _, mend := range []bool{false, true} {
			if mend { // so that the fuzzer gets past the checksum
				end := len(tail) - trailerBytes
				tail = bytes.Clone(tail)
				copy(tail[end+trailerMagic:], magic)
				crc := checksum(tail[:end+trailerCRC])
				copy(tail[end+trailerCRC:], []byte{byte(crc), byte(crc >> 8), byte(crc >> 16), byte(crc >> 24)})
			}
			tr, err := decodeTrailer(tail[len(tail)-trailerBytes:], size)
			if err != nil {
				refused(t, err)
				continue
			}
			if tr.footerBytes() != int64(len(tail)) {
				continue // the reader maps this number of files
			}
			ft := footer{trailer: tr, bytes: tail, begin: size - tr.footerBytes()}
			l := limits{0, 5000, compressed}
			largest, err := ft.check(l)
			if err != nil {
				refused(t, err)
				continue
			}
			samples, end := 0, int64(0)
			for b := range ft.blocks {
				s := ft.span(b)
				if s.offset%align != 0 || s.offset < end || s.bytes < 0 || s.offset+s.bytes > ft.begin ||
					s.first != ft.first+samples {
					t.Fatalf("block %d: %+v, %d samples before it", b, s, samples)
				}
				end = s.offset
				for samples < ft.samples && (b+1 == ft.blocks || ft.first+samples < ft.span(b+1).first) {
					e := ft.entry(samples)
					if e.offset != end || e.length > largest || largest > 5000 || e.stored > e.length || !compressed &&
						e.stored != e.length {
						t.Fatalf("sample %d: %+v, ends at %d", samples, e, end)
					}
					end += int64(e.stored)
					samples++
				}
				fatal.Equal(t, end, s.offset+s.bytes, "the end of block %d: %+v", b, s)
			}
			if samples != ft.samples || end > ft.begin || ft.begin > size {
				t.Fatalf("%d samples to %d in %+v", samples, end, ft.trailer)
			}
		}
	})
}

func refused(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, source.ErrCorrupt) && !errors.Is(err, source.ErrInvalid) {
		t.Fatal(err)
	}
}

// With any dataset.json, with a correct id or not, a dataset is refused, or its schema and limits
// are sound and its files have valid names.
func FuzzDocument(f *testing.F) {
	for _, c := range []Compression{None, Zstd} {
		b := fatal.Value(os.ReadFile(filepath.Join(small(f, c), datasetName)))(f)
		f.Add(b)
	}
	f.Add([]byte(`{"format":"stocached-block","version":1,"description":{"fields":[{"name":"a","dtype":"float32","dims":[null,18446744073709551615]}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, mend := range []bool{false, true} {
			if mend {
				var doc document
				var compact bytes.Buffer
				if json.Unmarshal(text, &doc) != nil || json.Compact(&compact, doc.Description) != nil {
					return
				}
				id := identify(compact.Bytes())
				doc.ID = hex.EncodeToString(id[:])
				var err error
				if text, err = doc.sealed(); err != nil {
					return
				}
			}
			doc, d, _, err := decodeDocument(text)
			if err != nil {
				refused(t, err)
				continue
			}
			samples := 0
			for k, r := range doc.Files {
				if r.Name != fileName(k) || r.Samples < 1 {
					t.Fatalf("file %d: %+v", k, r)
				}
				samples += r.Samples
			}
			again, err := shm.NewSchema(d.Schema.Fields, d.Schema.Variable)
			if err != nil || samples != doc.Samples || d.check() != nil || d.Schema.SampleBytes > shm.MaxSampleBytes ||
				!d.Schema.Variable && again.SampleBytes != d.Schema.SampleBytes {
				t.Fatalf("%+v, %+v, %v", doc, d, err)
			}
		}
	})
}
