package block_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/sourcetest"
)

// shape is a dataset of the tests: options and samples.
type shape struct {
	options block.Options
	samples [][]byte
}

func schema(t testing.TB, variable bool, fields ...shm.Field) shm.Schema {
	t.Helper()
	s := fatal.Value(shm.NewSchema(fields, variable))(t)
	return s
}

// noise returns bytes that do not compress, text bytes that do.
func noise(i, n int) []byte {
	b, random := make([]byte, n), rand.New(rand.NewPCG(uint64(i), 7))
	for k := range b {
		b[k] = byte(random.Uint32())
	}
	return b
}

func text(i, n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("sample %d and so on; ", i)), n/15+1)[:n]
}

func shapes(t testing.TB) map[string]shape {
	all := map[string]shape{}
	add := func(name string, s shm.Schema, c block.Compression, n int, sample func(i int) []byte) {
		sh := shape{options: block.Options{Schema: s, Compression: c, BlockBytes: 4096, FileBytes: 8192, Source: block.Origin{Kind: "test", Fingerprint: name},
			Notes: []source.Note{{Name: "classes", Text: "<cat> & dog, ünï"}}}}
		for i := range n {
			sh.samples = append(sh.samples, sample(i))
		}
		all[name] = sh
	}
	bytesField := shm.Field{Name: "data", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}
	sizes := []int{900, 0, 5000, 3, 4096, 4097, 20000, 1, 700, 0, 0, 3000, 2000}
	add("fixed", schema(t, false, shm.Field{Name: "x", DType: shm.Float32, Dims: []uint64{10, 25}}), block.None, 40,
		func(i int) []byte { return noise(i, 1000) })
	add("fixed, larger than a block", schema(t, false, shm.Field{Name: "x", DType: shm.Uint8, Dims: []uint64{5000}}),
		block.None, 7, func(i int) []byte { return noise(i, 5000) })
	add("variable", schema(t, true, bytesField), block.None, len(sizes), func(i int) []byte { return noise(i, sizes[i]) })
	add("zstd", schema(t, true, bytesField), block.Zstd, len(sizes), func(i int) []byte {
		if i%3 == 1 {
			return noise(i, sizes[i]) // stored uncompressed
		}
		return text(i, sizes[i])
	})
	add("fixed zstd", schema(t, false, shm.Field{Name: "x", DType: shm.Uint8, Dims: []uint64{3000}}), block.Zstd, 30,
		func(i int) []byte {
			return append(text(i, 2000), noise(i, 1000)...)
		})
	fields := schema(t, true, shm.Field{Name: "image", DType: shm.Uint8, Dims: []uint64{shm.VariableDim, shm.VariableDim, 3}}, shm.Field{Name: "label", DType: shm.Int64})
	add("fields", fields, block.None, 9, func(i int) []byte {
		s, err := fields.Join([]shm.Part{{Dims: []uint64{uint64(i + 1), 70, 3}, Data: noise(i, (i+1)*210)}, {Data: binary.LittleEndian.AppendUint64(nil, uint64(i))}})
		fatal.If(t, err)
		return s
	})
	fixed := schema(t, false, shm.Field{Name: "flag", DType: shm.Bool},
		shm.Field{Name: "image", DType: shm.Float64, Dims: []uint64{30}}, shm.Field{Name: "label", DType: shm.Int16})
	add("fixed fields, zstd", fixed, block.Zstd, 50, func(i int) []byte {
		s, err := fixed.Join([]shm.Part{{Data: []byte{1}}, {Data: append(text(i, 100), noise(i, 140)...)}, {Data: []byte{byte(i), 0}}})
		fatal.If(t, err)
		return s
	})
	return all
}

// write makes the dataset in a new folder and returns the folder.
func (s shape) write(t testing.TB) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "set")
	w := fatal.Value(block.Create(t.Context(), folder, s.options))(t)
	defer w.Close()
	for i, sample := range s.samples {
		fatal.Equal(t, w.Next(), i, "next")
		fatal.If(t, w.Write(sample))
	}
	fatal.If(t, w.Finish())
	return folder
}

func open(t testing.TB, folder string) *block.Dataset {
	t.Helper()
	d := fatal.Value(block.Open(t.Context(), folder, true))(t)
	t.Cleanup(func() { d.Close() })
	return d
}

// file returns the path of a block file.
func file(folder string, k int) string { return filepath.Join(folder, fmt.Sprintf("%05d.stocblk", k)) }

func TestSuite(t *testing.T) {
	for name, s := range shapes(t) {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				folder := s.write(t)
				return sourcetest.Fixture{
					Open: func(*testing.T) (source.Source, error) {
						return block.Kind.Open(context.Background(), source.Settings{"path": folder})
					},
					Want:  s.samples,
					Files: []string{file(folder, 0)},
					Damage: func(t *testing.T) {
						stamp := fatal.Value(os.Stat(file(folder, 0)))(t)
						flip(t, file(folder, 0), 1)
						fatal.If(t, os.Chtimes(file(folder, 0), time.Time{}, stamp.ModTime()))
					},
				}
			})
		})
	}
}

// flip changes all bits of a byte of a file.
func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f := fatal.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	b := make([]byte, 1)
	fatal.Value(f.ReadAt(b, at))(t)
	b[0] ^= 0xFF
	fatal.Value(f.WriteAt(b, at))(t)
}

// put writes a byte of a file.
func put(t testing.TB, path string, at int64, b byte) {
	t.Helper()
	f := fatal.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	fatal.Value(f.WriteAt([]byte{b}, at))(t)
}

// Ensure that blocks hold all samples in order, each within the bytes of its block, and that
// ReadBlock returns the same samples as Read.
func TestBlocks(t *testing.T) {
	for name, s := range shapes(t) {
		t.Run(name, func(t *testing.T) {
			d := open(t, s.write(t))
			if d.Blocks() < 2 {
				t.Fatalf("%d blocks show too little", d.Blocks())
			}
			if files, _ := d.Files(); files < 2 && strings.HasPrefix(name, "variable") {
				t.Fatalf("%d files show too little", files)
			}
			next := 0
			for b := range d.Blocks() {
				first, n := d.Block(b)
				if first != next || n < 1 {
					t.Fatalf("block %d: %d samples from %d, want from %d", b, n, first, next)
				}
				bytesIn := 0
				err := d.ReadBlock(t.Context(), b, func(i int, sample []byte) error {
					if i != next || !bytes.Equal(sample, s.samples[i]) || d.BlockOf(i) != b {
						t.Fatalf("block %d: sample %d of %d bytes, in block %d; want %d", b, i, len(sample), d.BlockOf(i), next)
					}
					next++
					bytesIn += len(sample)
					return nil
				})
				if err != nil || next != first+n {
					t.Fatalf("block %d ends at %d, want %d: %v", b, next, first+n, err)
				}
				if s.options.Compression == block.None && bytesIn > 4096 && n > 1 {
					t.Errorf("block %d has %d bytes in %d samples", b, bytesIn, n)
				}
			}
			expect.Equal(t, next, len(s.samples), "samples of the blocks")
		})
	}
}

func TestBlocksThatAreNone(t *testing.T) {
	s := shapes(t)["fixed"]
	folder := s.write(t)
	d := open(t, folder)
	never := func(int, []byte) error { t.Error("called"); return nil }
	for _, b := range []int{-1, d.Blocks(), 1 << 62} {
		if first, n := d.Block(b); first != 0 || n != 0 {
			t.Errorf("block %d: %d, %d", b, first, n)
		}
		if err := d.ReadBlock(t.Context(), b, never); !errors.Is(err, source.ErrIndex) {
			t.Errorf("block %d: %v", b, err)
		}
	}
	if d.BlockOf(-1) != -1 || d.BlockOf(len(s.samples)) != -1 {
		t.Error("samples that are none are in a block")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	expect.Error(t, d.ReadBlock(ctx, 0, never), cause)
	calls := 0
	if err := d.ReadBlock(t.Context(), 0, func(int, []byte) error { calls++; return cause }); !errors.Is(err, cause) || calls != 1 {
		t.Error(calls, err)
	}
	// A damaged sample ends a block after the samples before it.
	flip(t, file(folder, 0), 2500)
	d = open(t, folder)
	var seen []int
	err := d.ReadBlock(t.Context(), 0, func(i int, _ []byte) error { seen = append(seen, i); return nil })
	if !errors.Is(err, source.ErrCorrupt) || !slices.Equal(seen, []int{0, 1}) ||
		!strings.Contains(err.Error(), "sample 2") {
		t.Error(seen, err)
	}
	// Close in a callback does not deadlock.
	expect.NoError(t, d.ReadBlock(t.Context(), 1, func(int, []byte) error { return d.Close() }))
	if err := d.ReadBlock(t.Context(), 0, never); !errors.Is(err, source.ErrClosed) || d.BlockOf(0) != -1 {
		t.Error(err)
	}
	if first, n := d.Block(0); first != 0 || n != 0 {
		t.Error(first, n)
	}
}

// Ensure that the error of a damaged sample has the file, the sample and both checksums, and that
// without verify no checksum is compared.
func TestChecksum(t *testing.T) {
	s := shapes(t)["fixed"]
	folder := s.write(t)
	flip(t, file(folder, 0), 1)
	_, err := open(t, folder).Read(t.Context(), 0, make([]byte, 1000))
	changed := slices.Clone(s.samples[0])
	changed[1] ^= 0xFF
	crc := func(b []byte) string {
		return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	for _, want := range []string{file(folder, 0), "sample 0", crc(changed), crc(s.samples[0])} {
		if !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	loose := fatal.Value(block.Kind.Open(t.Context(), source.Settings{"path": folder, "verify": false}))(t)
	defer loose.Close()
	got := make([]byte, 1000)
	if _, err := loose.Read(t.Context(), 0, got); err != nil || !bytes.Equal(got, changed) {
		t.Error(err)
	}
}

// Ensure that a dataset has the whole description of its writer.
func TestDescription(t *testing.T) {
	for name, s := range shapes(t) {
		d := open(t, s.write(t))
		got := d.Description()
		largest := 0
		for _, sample := range s.samples {
			largest = max(largest, len(sample))
		}
		if got.Source != s.options.Source || got.BlockBytes != 4096 || got.FileBytes != 8192 ||
			got.Compression != s.options.Compression || !slices.Equal(got.Notes, s.options.Notes) ||
			got.Schema.SampleBytes != uint64(largest) || got.Schema.Variable != s.options.Schema.Variable ||
			fmt.Sprint(got.Schema.Fields) != fmt.Sprint(s.options.Schema.Fields) {
			t.Errorf("%s: %+v from %+v", name, got, s.options)
		}
	}
}

// Ensure that a flipped bit of any byte is detected: the dataset is refused, or each sample is the
// same as before or an error.
func TestEveryByteFlipped(t *testing.T) {
	all := shapes(t)
	for _, name := range []string{"fixed", "zstd", "fields"} {
		s := all[name]
		s.samples = s.samples[:8]
		folder := s.write(t)
		buffer := make([]byte, 1<<16)
		for _, path := range []string{file(folder, 0), filepath.Join(folder, "dataset.json")} {
			original := fatal.Value(os.ReadFile(path))(t)
			refused, corrupt, harmless := 0, 0, 0
			for at := range original {
				if at%7 != 0 && at < len(original)-1500 && strings.HasSuffix(path, "stocblk") {
					continue // check only some bytes of samples: each has one checksum
				}
				put(t, path, int64(at), original[at]^1<<(at%8))
				d, err := block.Open(t.Context(), folder, true)
				if err != nil {
					if !errors.Is(err, source.ErrCorrupt) && !errors.Is(err, source.ErrInvalid) {
						t.Errorf("byte %d of %s: %v", at, path, err)
					}
					refused++
					put(t, path, int64(at), original[at])
					continue
				}
				fatal.Equal(t, d.Info().Samples, len(s.samples), "byte %d of %s: samples", at, path)
				bad := 0
				for i, want := range s.samples {
					n, err := d.Read(t.Context(), i, buffer)
					if err == nil && !bytes.Equal(buffer[:n], want) {
						t.Fatalf("byte %d of %s: sample %d is wrong", at, path, i)
					}
					if err != nil {
						bad++
						if !errors.Is(err, source.ErrCorrupt) {
							t.Errorf("byte %d of %s: %v", at, path, err)
						}
					}
				}
				d.Close()
				put(t, path, int64(at), original[at])
				if bad > 1 {
					t.Errorf("byte %d of %s: %d samples are damaged", at, path, bad)
				}
				corrupt += bad
				harmless += 1 - bad
			}
			t.Logf("%s, %s: %d bytes: %d refused, %d corrupt samples, %d harmless", name, filepath.Base(path), len(original),
				refused, corrupt, harmless)
		}
	}
}

// sealed adds the checksum to dataset.json, from docs/spec/block.md alone.
func sealed(t *testing.T, text []byte) []byte {
	t.Helper()
	var compact bytes.Buffer
	fatal.If(t, json.Compact(&compact, text))
	at := bytes.LastIndex(compact.Bytes(), []byte(`,"crc32c":"`))
	crc := crc32.Checksum(compact.Bytes()[:at], crc32.MakeTable(crc32.Castagnoli))
	return []byte(fmt.Sprintf(`%s,"crc32c":"%08x"}`, compact.Bytes()[:at], crc))
}

// Ensure that an incomplete dataset or another format is refused with the reason.
func TestRefuses(t *testing.T) {
	s := shapes(t)["fixed"]
	edit := func(old, with string, seal bool) func(t *testing.T, folder string) {
		return func(t *testing.T, folder string) {
			path := filepath.Join(folder, "dataset.json")
			b, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(b, []byte(old)) {
				t.Fatal(err, string(b))
			}
			b = bytes.Replace(b, []byte(old), []byte(with), 1)
			if seal {
				b = sealed(t, b)
			}
			fatal.If(t, os.WriteFile(path, b, 0o600))
		}
	}
	replace := func(old, with string) func(t *testing.T, folder string) { return edit(old, with, true) }
	for name, c := range map[string]struct {
		damage func(t *testing.T, folder string)
		err    error
		want   string
	}{
		"no folder": {func(_ *testing.T, folder string) { os.RemoveAll(folder) }, fs.ErrNotExist,
			"no dataset in block files, such as stocached pack makes"},
		"interrupted": {func(_ *testing.T, folder string) { os.Rename(folder, folder+".part") }, fs.ErrNotExist,
			"the dataset is not whole"},
		"not JSON":        {edit("{", "}", false), source.ErrCorrupt, "dataset.json: "},
		"another format":  {replace("stocached-block", "zip"), source.ErrInvalid, `format "zip", want "stocached-block"`},
		"another version": {replace(`"version": 1`, `"version": 2`), source.ErrInvalid, "version 2 of the block format, this program knows 1"},
		"an unknown key":  {replace(`"samples"`, `"wheels": 4, "samples"`), source.ErrCorrupt, "wheels"},
		"after it":        {edit("\n}\n", "\n}\n{}", false), source.ErrCorrupt, "invalid character"},
		"edited":          {edit("dog", "dot", false), source.ErrCorrupt, "it was changed after it was written"},
		"no checksum": {edit("crc32c\": \"", "crc32\": \"", false), source.ErrCorrupt,
			"it was changed after it was written"},
		"another schema":  {replace("float32", "int32"), source.ErrCorrupt, "its description gives"},
		"sample bytes":    {replace(`"sample_bytes": 1000`, `"sample_bytes": 1001`), source.ErrCorrupt, "sample_bytes is 1001, and its fields take 1000"},
		"count":           {replace(`"samples": 40`, `"samples": 41`), source.ErrCorrupt, "it has 41 samples, and its files 40"},
		"another name":    {replace("00001.stocblk", "../1.stocblk"), source.ErrCorrupt, "../1.stocblk"},
		"negative":        {replace(`"blocks": `, `"blocks": -`), source.ErrCorrupt, "at least one sample and one block"},
		"footer checksum": {replace(`"footer_crc32c": "`, `"footer_crc32c": "x`), source.ErrCorrupt, "dataset.json says"},
		"a missing file": {func(_ *testing.T, folder string) { os.Remove(file(folder, 1)) }, fs.ErrNotExist,
			"00001.stocblk"},
		"a short file": {func(_ *testing.T, folder string) { os.Truncate(file(folder, 1), 50) }, source.ErrCorrupt,
			"50 bytes, too few"},
		"a cut file": {func(_ *testing.T, folder string) { os.Truncate(file(folder, 1), 9000) }, source.ErrCorrupt,
			"magic"},
		"swapped files": {func(_ *testing.T, folder string) {
			os.Rename(file(folder, 0), file(folder, 1))
			os.Link(file(folder, 1), file(folder, 0))
		}, source.ErrCorrupt,
			"number 0, from sample 0"},
		"a folder in its place": {func(_ *testing.T,
			folder string) {
			os.Remove(file(folder, 1))
			os.Mkdir(file(folder, 1), 0o700)
		}, source.ErrInvalid,
			"not a regular file"},
		"another dataset's file": {func(t *testing.T, folder string) {
			other := s
			other.options.Source.Fingerprint = "other"
			os.Rename(file(other.write(t), 0), file(folder, 0))
		}, source.ErrCorrupt, "belongs to another dataset"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := s.write(t)
			c.damage(t, folder)
			d, err := block.Open(t.Context(), folder, true)
			if err == nil {
				d.Close()
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), folder) {
				t.Errorf("%v; want %v with %q", err, c.err, c.want)
			}
		})
	}
	for _, settings := range []source.Settings{{}, {"path": 3}, {"path": "x", "verfy": true},
		{"path": "x", "verify": "no"}} {
		if _, err := block.Kind.Open(t.Context(), settings); !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%v: %v", settings, err)
		}
	}
}

// Ensure that a lack of descriptors is an error with a remedy, and that the open ones are closed.
func TestDescriptors(t *testing.T) {
	s := shapes(t)["fixed"]
	folder := s.write(t)
	var was unix.Rlimit
	fatal.If(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	open := func() int {
		entries := fatal.Value(os.ReadDir("/proc/self/fd"))(t)
		return len(entries) - 1 // the one that reads this folder
	}
	before := open()
	few := was
	few.Cur = uint64(before) + 3
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	_, err := block.Open(t.Context(), folder, true)
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "keeps all 5 block files open") ||
		!strings.Contains(err.Error(), "--file-size") {
		t.Error(err)
	}
	expect.Equal(t, open(), before, "descriptors")
}

// Ensure that a million samples take little memory when they are open, and are found.
func TestAMillionSamples(t *testing.T) {
	const n = 1_000_000
	s := shape{options: block.Options{Schema: schema(t, false, shm.Field{Name: "x", DType: shm.Uint64})}}
	folder := filepath.Join(t.TempDir(), "set")
	w := fatal.Value(block.Create(t.Context(), folder, s.options))(t)
	sample := make([]byte, 8)
	for i := range n {
		binary.LittleEndian.PutUint64(sample, uint64(i)*3)
		fatal.If(t, w.Write(sample))
	}
	fatal.If(t, w.Finish())
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	d := open(t, folder)
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	if grown > 1<<20 {
		t.Errorf("opening took %d bytes of heap; want less than 1 MiB, whatever the number of samples", grown)
	}
	for _, i := range append([]int{0, n - 1, 65535, 65536}, rand.Perm(n)[:1000]...) {
		if _, err := d.Read(t.Context(), i, sample); err != nil || binary.LittleEndian.Uint64(sample) != uint64(i)*3 {
			t.Fatal(i, sample, err)
		}
	}
}
