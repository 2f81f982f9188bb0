package tar_test

import (
	stdtar "archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
)

// samplesOf returns the members of some samples, and their expected bytes with the fields cls and
// jpg.
func samplesOf(t testing.TB, first, n int, bytes func(i int) int) (members []one, want [][]byte) {
	for i := first; i < first+n; i++ {
		jpg := bytesOf(i, bytes(i))
		members = append(members, one{name: fmt.Sprintf("%06d.jpg", i), data: jpg},
			one{name: fmt.Sprintf("%06d.cls", i), data: cls(i)})
		want = append(want, joined(t, []string{"cls", "jpg"}, cls(i), jpg))
	}
	return members, want
}

func TestSuite(t *testing.T) {
	near, far := func(i int) int { return i * 100 }, func(i int) int { return 5000 + 7000*(i%3) }
	both, jpg := []string{"cls", "jpg"}, []string{"jpg"}
	for name, c := range map[string]struct {
		size   func(i int) int
		index  string
		fields []string
		shards int
	}{
		"near, one shard": {near, "", both, 1}, "far, one shard": {far, "none", both, 1},
		"near, one field": {near, "none", jpg, 1}, "far, one field": {far, "", jpg, 1},
		"near, many shards": {near, "", both, 5}, "far, many shards": {far, "none", both, 5},
	} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				folder := t.TempDir()
				var want [][]byte
				for k := range c.shards {
					members, some := samplesOf(t, 3*k, 3, c.size)
					for i := range some {
						if len(c.fields) == 1 {
							some[i] = bytesOf(3*k+i, c.size(3*k+i))
						}
					}
					want = append(want, some...)
					writeFile(t, filepath.Join(folder, fmt.Sprintf("train-%06d.tar", k)), archive(t, stdtar.FormatUnknown, members...))
				}
				settings := source.Settings{"path": fmt.Sprintf("%s/train-{000000..%06d}.tar", folder, c.shards-1), "open_files": 2,
					"index": c.index, "fields": c.fields}
				return sourcetest.Fixture{Want: want, Files: []string{filepath.Join(folder, "train-000000.tar")},
					Open: func(t *testing.T) (source.Source, error) { return openTar(t, settings) }}
			})
		})
	}
}

func TestNumbers(t *testing.T) {
	path := shardOf(t, text("0.jpg", "picture"), text("0.cls", "7"), text("1.jpg", ""), text("1.cls", " -12\n"),
		text("2.cls", "dog"), text("2.jpg", "x"),
		text("3.cls", strings.Repeat("1", 65)), text("3.jpg", "x"), text("4.cls", "9223372036854775808"), text("4.jpg", ""))
	s := mustOpen(t, source.Settings{"path": path, "fields": []string{"JPG", ".cls"}, "int64": []string{"cls"}})
	want := []shm.Field{{Name: "jpg", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}, {Name: "cls", DType: shm.Int64}}
	if schema := s.Info().Schema; !reflect.DeepEqual(schema.Fields, want) || !schema.Variable {
		t.Errorf("%+v", schema)
	}
	for i, n := range []int64{7, -12} {
		expect.Equal(t, sample(t, s, i)["cls"], string(binary.LittleEndian.AppendUint64(nil, uint64(n))), "sample %d, class %d", i, n)
	}
	for i, text := range map[int]string{2: `cls is "dog", which is not an int64`, 3: "65 bytes, too many for a number", 4: "not an int64"} {
		if _, err := s.Read(context.Background(), i, make([]byte, 1000)); !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), text) ||
			!strings.Contains(err.Error(), fmt.Sprintf("sample %q", fmt.Sprint(i))) {
			t.Errorf("%v; want %q", err, text)
		}
	}
	fixed := mustOpen(t, source.Settings{"path": path, "fields": []string{"cls"}, "int64": []string{"cls"}})
	if schema := fixed.Info().Schema; schema.Variable || schema.SampleBytes != 8 ||
		sample(t, fixed, 0)["cls"] != "\x07\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("only numbers: %+v", schema)
	}
}

// The schema has the exact size of the largest sample, in any place.
func TestLargestSample(t *testing.T) {
	for _, sizes := range [][]int{{3, 7, 5}, {7, 3, 5}, {64, 65, 63}, {1, 128, 128}, {0, 0, 0}} {
		for _, fields := range [][]string{{"txt"}, {"txt", "cls"}, {"cls", "txt", "n"}} {
			var members []one
			for i, size := range sizes {
				members = append(members, one{name: fmt.Sprint(i, ".txt"), data: bytesOf(i, size)},
					one{name: fmt.Sprint(i, ".cls"), data: bytesOf(i, 100-size%70)},
					text(fmt.Sprint(i, ".n"), strings.Repeat(" ", 70*(i%2))+"1"))
			}
			s := mustOpen(t, source.Settings{"path": shardOf(t, members...), "fields": fields, "int64": slices.DeleteFunc(slices.Clone(fields), func(f string) bool { return f != "n" })})
			most := 0
			for i := range sizes {
				n := fatal.Value(s.Size(i))(t)
				most = max(most, n)
			}
			expect.Equal(t, s.Info().Schema.SampleBytes, uint64(most), "sizes %v, fields %v: the largest sample", sizes, fields)
		}
	}
}

// The field jpg;png is a jpg if the sample has one, else a png.
func TestAlternatives(t *testing.T) {
	path := shardOf(t, text("0.png", "p0"), text("0.cls", "0"), text("1.JPG", "j1"), text("1.cls", "1"),
		text("2.png", "p2"), text("2.jpg", "j2"), text("2.cls", "2"),
		text("3.jpg", "j3"), text("3.png", "p3"), text("3.cls", "3"))
	s := mustOpen(t, source.Settings{"path": path, "fields": []string{"jpg;png", "cls"}})
	for i, want := range []string{"p0", "j1", "j2", "j3"} {
		if got := sample(t, s, i); got["jpg"] != want || got["cls"] != fmt.Sprint(i) {
			t.Errorf("sample %d is %q", i, got)
		}
	}
	if got := sourcetest.Note(s, "members left out"); !strings.HasPrefix(got, "2,") {
		t.Errorf("left out: %q", got)
	}
}

func TestMissingFields(t *testing.T) {
	members := []one{text("a/0.jpg", "0"), text("a/0.cls", "0"), text("a/1.jpg", "1"), text("a/2.cls", "2"),
		text("a/2.jpg", "2"), text("a/2.json", "{}"), text("a/3.txt", "")}
	path := shardOf(t, members...)
	refused(t, source.Settings{"path": path}, source.ErrInvalid, path, `sample "a/1" has no cls, it has jpg`, "missing: skip")
	refused(t, source.Settings{"path": path, "fields": []string{"jpg", "cls", "txt"}}, source.ErrInvalid, `sample "a/0" has no txt, it has jpg, cls`)
	refused(t, source.Settings{"path": path, "fields": []string{"wav"}, "missing": "skip"}, source.ErrInvalid,
		"all 4 samples", "lack", "wav", "[jpg cls]")

	s := mustOpen(t, source.Settings{"path": path, "missing": "skip"})
	if got := []map[string]string{sample(t, s, 0), sample(t, s, 1)}; s.Info().Samples != 2 || got[0]["jpg"] != "0" || got[1]["jpg"] != "2" || got[1]["cls"] != "2" {
		t.Errorf("%d samples, %q", s.Info().Samples, got)
	}
	expect.Says(t, s.Where(1), `"a/2"`)
	if got := sourcetest.Note(s, "samples skipped"); !strings.HasPrefix(got, "2,") {
		t.Errorf("skipped: %q", got)
	}
	all := mustOpen(t, source.Settings{"path": path, "fields": []string{"cls"}, "missing": "skip"})
	other := mustOpen(t, source.Settings{"path": path, "fields": []string{"jpg", "cls"}, "missing": "skip"})
	if a, b, c := s.Info().Fingerprint, all.Info().Fingerprint, other.Info().Fingerprint; a == b || b == c || a == c {
		t.Errorf("other fields, same fingerprint: %s %s %s", a, b, c)
	}
	// A link holds no data: the message has the remedy.
	linked := shardOf(t, text("0.jpg", "0"), text("0.cls", "0"),
		one{name: "1.jpg", kind: stdtar.TypeLink, link: "0.jpg"}, text("1.cls", "1"))
	refused(t, source.Settings{"path": linked}, source.ErrInvalid, `"1" has no jpg`, "1 links", "--hard-dereference")
}

// Other members of a shard are ignored and counted.
func TestOtherMembers(t *testing.T) {
	path := shardOf(t, one{name: "train/", kind: stdtar.TypeDir}, text("train/README", "hello"),
		text("train/0.jpg", "0"), text("train/._0.jpg", "a macOS shadow"),
		text("train/0.seg.png", "seg"), text("__meta__", "x"), text("__meta__/1.jpg", "x"), text("train/1.jpg",
			"1"), one{name: "train/l.jpg", kind: stdtar.TypeSymlink, link: "0.jpg"},
		text("train/1.seg.png", "seg1"), text("train/1.", "no field"), text("val/1.jpg",
			"another 1"), text("val/1.seg.png", ""), text("train/1.jpg", "again"), text("train/1.seg.png", "!"))
	s := mustOpen(t, source.Settings{"path": path})
	fatal.Equal(t, s.Info().Samples, 4, "samples")
	for i, want := range []map[string]string{{"jpg": "0", "seg.png": "seg"}, {"jpg": "1", "seg.png": "seg1"},
		{"jpg": "another 1", "seg.png": ""}, {"jpg": "again", "seg.png": "!"}} {
		if got := sample(t, s, i); !reflect.DeepEqual(got, want) {
			t.Errorf("sample %d is %q", i, got)
		}
	}
	if ignored, links := sourcetest.Note(s, "members ignored"), sourcetest.Note(s, "links ignored"); !strings.HasPrefix(ignored, "5,") || !strings.HasPrefix(links, "1,") {
		t.Errorf("%q, %q", ignored, links)
	}
	twice := shardOf(t, text("0.jpg", "0"), text("0.cls", "0"), text("0.JPG", "1"))
	refused(t, source.Settings{"path": twice}, source.ErrInvalid, twice, `"0" has the field "jpg" twice`, `"0.JPG"`)
	again := mustOpen(t, source.Settings{"path": path})
	if kept := sourcetest.Note(again, "indexes kept"); kept != "1, used as they were" ||
		sourcetest.Note(again, "members ignored") != sourcetest.Note(s, "members ignored") ||
		sourcetest.Note(again, "links ignored") != sourcetest.Note(s, "links ignored") {
		t.Errorf("another note from a kept index: %+v, %+v", s.Info().Notes, again.Info().Notes)
	}
}

// Names of all lengths, in all formats of writers.
func TestNames(t *testing.T) {
	long := strings.Repeat("folder-of-some-length/", 12) + strings.Repeat("n", 90)
	for name, format := range map[string]stdtar.Format{"GNU": stdtar.FormatGNU, "PAX": stdtar.FormatPAX} {
		for _, key := range []string{"0", strings.Repeat("k", 99), strings.Repeat("k", 120), long, "ordner/größe",
			"a b/'q'"} {
			path := writeFile(t, filepath.Join(t.TempDir(), "s.tar"),
				archive(t, format, text(key+".jpg", "picture"), text(key+".cls", "3")))
			for range 2 { // made, then kept
				s := mustOpen(t, source.Settings{"path": path})
				if got := sample(t, s, 0); got["jpg"] != "picture" || got["cls"] != "3" ||
					!strings.Contains(s.Where(0), fmt.Sprintf("%q", key)) {
					t.Errorf("%s, key %q: %q at %s", name, key, got, s.Where(0))
				}
			}
		}
	}
	prefix := strings.Repeat("p", 60) + "/" + strings.Repeat("q", 60) // USTAR stores folders separately
	s := mustOpen(t, source.Settings{"path": writeFile(t, filepath.Join(t.TempDir(), "s.tar"), archive(t, stdtar.FormatUSTAR, text(prefix+".jpg", "x")))})
	if got := sample(t, s, 0); got["jpg"] != "x" || !strings.Contains(s.Where(0), prefix) {
		t.Errorf("%q at %s", got, s.Where(0))
	}
	mixed := text("0.JPG", "upper case is lower case")
	if got := sample(t, mustOpen(t, source.Settings{"path": shardOf(t, mixed)}), 0); got["jpg"] == "" {
		t.Errorf("%q", got)
	}
}

func TestDamaged(t *testing.T) {
	whole := archive(t, stdtar.FormatUnknown, one{name: "0.jpg", data: bytesOf(0, 3000)}, text("0.cls", "0"),
		one{name: "1.jpg", data: bytesOf(1, 3000)}, text("1.cls", "1"))
	second := 512 + 3072 + 1024 // where the header of 1.jpg begins
	broken := bytes.Clone(whole)
	broken[second+10] ^= 0xFF
	for name, c := range map[string]struct {
		data  []byte
		kind  error
		wants []string
	}{
		"cut in data":         {whole[:second+512+100], source.ErrCorrupt, []string{"is truncated at", fmt.Sprint(second + 612), `after member "1.jpg"`}},
		"cut in a header":     {whole[:second+100], source.ErrCorrupt, []string{"is truncated at", `after member "0.cls"`}},
		"cut between members": {whole[:second], source.ErrCorrupt, []string{"no end mark", `after member "0.cls"`, "truncate -s +1024"}},
		"a broken header":     {broken, source.ErrCorrupt, []string{`after member "0.cls"`, "invalid tar header"}},
		"nothing":             {nil, source.ErrCorrupt, []string{"is empty"}},
		"no archive":          {bytesOf(3, 5000), source.ErrInvalid, []string{"is not a tar archive"}},
		"a short text":        {[]byte("hello"), source.ErrInvalid, []string{"is not a tar archive"}},
		"an empty archive": {archive(t, stdtar.FormatUnknown), source.ErrInvalid,
			[]string{"no samples", "1 empty shards"}},
		"no fields": {archive(t, stdtar.FormatUnknown, text("LICENSE", "")), source.ErrInvalid,
			[]string{"no samples", "1 members of"}},
	} {
		path := writeFile(t, filepath.Join(t.TempDir(), "broken.tar"), c.data)
		_, err := openTar(t, source.Settings{"path": path})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*index*")); len(left) > 0 && c.kind == source.ErrCorrupt {
			t.Errorf("%s left %q", name, left)
		}
	}
	// The remedy in the message works.
	marked := writeFile(t, filepath.Join(t.TempDir(), "s.tar"), append(bytes.Clone(whole[:second]), make([]byte, 1024)...))
	expect.Equal(t, mustOpen(t, source.Settings{"path": marked}).Info().Samples, 1, "samples")
	// Archives joined by cat: the second one is ignored, as in webdataset, and a note says so.
	joined := writeFile(t, filepath.Join(t.TempDir(), "s.tar"), append(bytes.Clone(whole), whole...))
	for range 2 {
		s := mustOpen(t, source.Settings{"path": joined})
		if got := sourcetest.Note(s, "data after the end"); s.Info().Samples != 2 || !strings.Contains(got, fmt.Sprint(len(whole))) || !strings.Contains(got, joined) {
			t.Errorf("%d samples, %q", s.Info().Samples, got)
		}
	}
	padded := writeFile(t, filepath.Join(t.TempDir(), "s.tar"), append(bytes.Clone(whole), make([]byte, 20<<10)...))
	expect.Equal(t, sourcetest.Note(mustOpen(t, source.Settings{"path": padded}), "data after the end"), "", "zeros after the end")
}

// The data of a sparse file is not contiguous, and a member of 4 GiB is too large. Both are written
// as holes, with headers only.
func TestRefusedMembers(t *testing.T) {
	header := func(h *stdtar.Header) []byte {
		var b bytes.Buffer
		fatal.If(t, stdtar.NewWriter(&b).WriteHeader(h))
		return b.Bytes()
	}
	large := func(bytes int64) string {
		path := writeFile(t, filepath.Join(t.TempDir(), "large.tar"),
			header(&stdtar.Header{Name: "0.bin", Size: bytes, Format: stdtar.FormatGNU}))
		fatal.If(t, os.Truncate(path, 512+(bytes+511)/512*512+1024))
		return path
	}
	path := large(4 << 30)
	refused(t, source.Settings{"path": path}, source.ErrInvalid, path, `"0.bin" has 4294967296 bytes`, "at most 4294967295")
	expect.Gives(mustOpen(t, source.Settings{"path": large(4<<30 - 1)}).Size(0))(t, 4<<30-1)
	// Two fields of 3 GiB each are allowed, but not together.
	both := large(3 << 30)
	f := fatal.Value(os.OpenFile(both, os.O_WRONLY, 0))(t)
	defer f.Close()
	fatal.Value(f.WriteAt(header(&stdtar.Header{Name: "0.raw", Size: 3 << 30, Format: stdtar.FormatGNU}), 512+3<<30))(t)
	fatal.If(t, f.Truncate(1024+6<<30+1024))
	refused(t, source.Settings{"path": both}, source.ErrInvalid, `sample "0"`, "choose fewer fields")
	expect.Gives(mustOpen(t, source.Settings{"path": both, "fields": []string{"raw"}}).Size(0))(t, 3<<30)
}

func TestCompressed(t *testing.T) {
	for magic, c := range map[string]struct{ name, want string }{
		"\x1f\x8b\x08":         {"a.tar.gz", "gzip -dc 'DIR/a.tar.gz' > 'DIR/a.tar'"},
		"\x1f\x8b\x08 ":        {"it's.tgz", `gzip -dc 'DIR/it'\''s.tgz' > 'DIR/it'\''s.tar'`},
		"\x28\xb5\x2f\xfd":     {"a.tar.zst", "zstd -dc 'DIR/a.tar.zst' > 'DIR/a.tar'"},
		"\xfd7zXZ\x00":         {"a.txz", "xz -dc 'DIR/a.txz' > 'DIR/a.tar'"},
		"BZh91AY":              {"a.tar.bz2", "bzip2 -dc 'DIR/a.tar.bz2' > 'DIR/a.tar'"},
		"\x04\x22\x4d\x18":     {"a", "lz4 -dc 'DIR/a' > 'DIR/a.plain.tar'"},
		"\x1f\x8b\x08 renamed": {"a.tar", "gzip -dc 'DIR/a.tar' > 'DIR/a.plain.tar'"},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		writeFile(t, path, append([]byte(magic), bytesOf(1, 2000)...))
		refused(t, source.Settings{"path": path}, source.ErrInvalid, strings.ReplaceAll(c.want, "DIR", strings.ReplaceAll(filepath.Dir(path), "'", `'\''`)))
	}
	// The name alone does not matter.
	path := writeFile(t, filepath.Join(t.TempDir(), "plain.tar.gz"),
		archive(t, stdtar.FormatUnknown, text("0.txt", "plain")))
	if got := sample(t, mustOpen(t, source.Settings{"path": path}), 0); got["txt"] != "plain" {
		t.Errorf("%q", got)
	}
}

func TestRefuses(t *testing.T) {
	path := shardOf(t, text("0.jpg", ""), text("0.cls", "1"))
	for want, s := range map[string]source.Settings{
		"no path":             {},
		"unknown key":         {"path": path, "feilds": []string{"jpg"}},
		"is a folder":         {"path": filepath.Dir(path)},
		"no file matches":     {"path": filepath.Dir(path) + "/*.tgz"},
		"a whole part":        {"path": filepath.Dir(path) + "/a**/*.tar"},
		"download the":        {"path": "https://host/train-{0..3}.tar"},
		`begins with "pipe:"`: {"path": "pipe:cat x.tar"},
		"a { without its }":   {"path": "train-{0..3.tar"},
		"twice":               {"path": "{" + path + "," + path + "}"},
		"fields is empty":     {"path": path, "fields": []string{}},
		`missing is "drop"`:   {"path": path, "missing": "drop"},
		`"jpg;" has no name`:  {"path": path, "fields": []string{"jpg;"}},
		`"txt" is none of`:    {"path": path, "int64": []string{"txt"}},
		`"jpg" occurs twice`:  {"path": path, "fields": []string{"jpg", "JPG"}},
		`"png" occurs twice`:  {"path": path, "fields": []string{"jpg;png", "png"}},
		"open_files is -1":    {"path": path, "open_files": -1},
		"there are 2 shards": {"path": "{" + path + "," + shardOf(t, text("0.jpg", "")) + "}",
			"index": "/tmp/x.stocached-index"},
		"is not UTF-8 of at mo": {"path": shardOf(t, text("0."+strings.Repeat("x", 50), ""))},
	} {
		refused(t, s, source.ErrInvalid, want)
	}
	expect.Fails(openTar(t, source.Settings{"path": path + ".none"}))(t, os.ErrNotExist, path)
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	if s, err := openContext(ctx, path); !errors.Is(err, cause) {
		t.Errorf("%v, %v", s, err)
	}
}

func TestKeys(t *testing.T) {
	long := strings.Repeat("long/", 30) + "1"
	path := shardOf(t, text("0.txt", "a"), text("0.cls", "7"), text(long+".txt", "b"), text(long+".cls", "8"), text("2.txt", "c"))
	s := mustOpen(t, source.Settings{"path": path, "keys": true, "int64": []string{"cls"}, "missing": "skip"})
	for i, want := range []map[string]string{{"__key__": "0", "txt": "a"}, {"__key__": long, "txt": "b"}} {
		got := sample(t, s, i)
		if delete(got, "cls"); !maps.Equal(got, want) {
			t.Errorf("%q; want %q", got, want)
		}
	}
	if n, err := s.Size(1); err != nil || uint64(n) != s.Info().Schema.SampleBytes {
		t.Errorf("the sample with the longest key has %d bytes, the largest sample %d: %v", n, s.Info().Schema.SampleBytes, err)
	}
	without := mustOpen(t, source.Settings{"path": path, "missing": "skip"})
	if without.Info().Fingerprint == mustOpen(t, source.Settings{"path": path, "keys": true, "missing": "skip"}).Info().Fingerprint {
		t.Error("samples with keys and without have one fingerprint")
	}
	only := mustOpen(t, source.Settings{"path": path, "fields": []string{"txt"}, "keys": true})
	if got := sample(t, only, 2); got["txt"] != "c" || got["__key__"] != "2" {
		t.Errorf("%q", got)
	}
	path = shardOf(t, text("0.txt", "a"), text("1.txt", "b"), text("1.cls", "8"))
	for _, missing := range []string{"error", "skip"} {
		refused(t, source.Settings{"path": path, "keys": true, "missing": missing}, source.ErrInvalid,
			`sample "1" has txt, cls, and the first sample has txt`, "name in fields the members that all samples have", "source() reads all")
	}
}
