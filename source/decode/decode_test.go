package decode_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/dir"
	"github.com/stocached/stocached/source/sourcetest"
	"github.com/stocached/stocached/source/sourcetest/faults"
)

var small = map[string]any{"resize": []int{6, 8}}

// Ensure that decoded files pass the suite of all sources: plain ones, and ones with labels in
// files on disk.
func TestSuite(t *testing.T) {
	for name, settings := range map[string]source.Settings{"files": {}, "files and labels": {"labels": "folders"}} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				folder := t.TempDir()
				f := sourcetest.Fixture{Files: []string{filepath.Join(folder, "a", "0.png")}}
				for k, from := range []string{"same.png", "small.jpg", "lossless.webp", "see-through.png"} {
					path := filepath.Join(folder, string(rune('a'+k)), "0.png") // equal names: the content tells
					fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, read(t, from), 0o600)))
					want := fatal.Value(readOne(open(t, files(t, from), small), 0))(t)
					if len(settings) > 0 {
						want = binary.LittleEndian.AppendUint64(want, uint64(k))
					}
					f.Want = append(f.Want, want)
				}
				own := maps.Clone(settings)
				own["path"] = folder
				f.Open = func(*testing.T) (source.Source, error) {
					inner, err := dir.Kind.Open(context.Background(), own)
					if err != nil {
						return nil, err
					}
					return decode.New(inner, small)
				}
				f.Damage = func(t *testing.T) { damage(t, f.Files[0]) }
				return f
			})
		})
	}
}

// damage changes a byte in the middle of a file, but not its size or time.
func damage(t *testing.T, path string) {
	t.Helper()
	info := fatal.Value(os.Stat(path))(t)
	data := fatal.Value(os.ReadFile(path))(t)
	data[len(data)/2] ^= 0xFF
	f := fatal.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	fatal.Value(f.Write(data))(t)
	fatal.If(t, os.Chtimes(path, time.Time{}, info.ModTime()))
}

// Ensure that both layouts have the same pixels, and the shapes of their schemas.
func TestLayouts(t *testing.T) {
	planes := open(t, files(t, "420.jpg"), map[string]any{"resize": []any{30, 40}, "layout": "chw"})
	pixels := open(t, files(t, "420.jpg"), map[string]any{"resize": []any{30, 40}, "layout": "hwc"})
	byDefault := open(t, files(t, "420.jpg"), map[string]any{"resize": []any{30, 40}})
	p, err1 := readOne(planes, 0)
	x, err2 := readOne(pixels, 0)
	if err := errors.Join(err1, err2); err != nil || len(p) != 3600 || len(x) != 3600 {
		t.Fatal(len(p), len(x), err)
	}
	for k := range x {
		fatal.Equal(t, x[k], p[k%3*1200+k/3], "byte %d in both layouts", k)
	}
	a, b := planes.Info(), pixels.Info()
	if f := a.Schema.Fields; len(f) != 1 || f[0].Name != "image" || f[0].DType != shm.Uint8 ||
		!slices.Equal(f[0].Dims, []uint64{3, 30, 40}) {
		t.Errorf("%+v", f)
	}
	if f := b.Schema.Fields; !slices.Equal(f[0].Dims, []uint64{30, 40, 3}) {
		t.Errorf("%+v", f)
	}
	expect.Equal(t, byDefault.Info().Fingerprint, a.Fingerprint, "the default layout")
}

// Ensure that each setting that changes a pixel changes the fingerprint, which stays within its
// limit.
func TestFingerprint(t *testing.T) {
	seen := map[string]string{}
	add := func(name string, s source.Source) {
		t.Helper()
		f := s.Info().Fingerprint
		if len(f) > 64 || f == "" {
			t.Errorf("%s: %q", name, f)
		}
		if other, ok := seen[f]; ok {
			t.Errorf("%s and %s have the same fingerprint", name, other)
		}
		seen[f] = name
	}
	two := newMemory(t, fieldsOf("data", "png"), join(t, fieldsOf("data", "png"), read(t, "one.png"), read(t, "one.png")))
	changed := files(t, "one.png")
	changed.info.Fingerprint = strings.Repeat("x", 64)
	add("plain", open(t, files(t, "one.png"), small))
	add("larger", open(t, files(t, "one.png"), map[string]any{"resize": []int{6, 9}}))
	add("turned", open(t, files(t, "one.png"), map[string]any{"resize": []int{8, 6}}))
	add("hwc", open(t, files(t, "one.png"), map[string]any{"resize": []int{6, 8}, "layout": "hwc"}))
	add("cropped", open(t, files(t, "one.png"), map[string]any{"resize": []int{6, 8}, "fit": "crop"}))
	add("padded", open(t, files(t, "one.png"), map[string]any{"resize": []int{6, 8}, "fit": "pad"}))
	add("another field", open(t, two, map[string]any{"resize": []int{6, 8}, "field": "png"}))
	add("other files", open(t, changed, small))
}

func join(t testing.TB, fields []shm.Field, parts ...[]byte) []byte {
	t.Helper()
	schema := fatal.Value(shm.NewSchema(fields, true))(t)
	all := make([]shm.Part, len(parts))
	for k, p := range parts {
		if all[k].Data = p; len(fields[k].Dims) > 0 {
			all[k].Dims = []uint64{uint64(len(p)) / fields[k].DType.ItemSize()}
		}
	}
	sample := fatal.Value(schema.Join(all))(t)
	return sample
}

// Ensure that fields of one shape stay, aligned and with zeros in gaps, and that others are left
// out with a note.
func TestFields(t *testing.T) {
	fields := []shm.Field{
		{Name: "flag", DType: shm.Uint8}, {Name: "text", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}, {Name: "jpg",
			DType: shm.Bytes, Dims: []uint64{shm.VariableDim}},
		{Name: "label", DType: shm.Int64}, {Name: "box", DType: shm.Int32, Dims: []uint64{2}},
	}
	label := binary.LittleEndian.AppendUint64(nil, 77)
	s := open(t, newMemory(t, fields, join(t, fields, []byte{9}, []byte("a cat"), read(t, "one.png"), label, []byte{1, 2, 3, 4, 5, 6, 7, 8})), map[string]any{"resize": []int{1, 1}})
	got, err := readOne(s, 0)
	if want := slices.Concat([]byte{10, 200, 30, 9, 0, 0, 0, 0}, label, []byte{1, 2, 3, 4, 5, 6, 7, 8}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	info := s.Info()
	if last := info.Notes[len(info.Notes)-1]; last.Name != "left out" || !strings.Contains(last.Text, "text") || len(info.Schema.Fields) != 4 {
		t.Errorf("%+v", info)
	}

	for name, c := range map[string]struct {
		fields []shm.Field
		field  string
		want   string // the note of the field, or the error
	}{
		"by name":      {fieldsOf("json", "jpg"), "", "images of field jpg, "},
		"the only one": {fieldsOf("content"), "", "images of field content, "},
		"chosen":       {fieldsOf("jpg", "mask"), "mask", "images of field mask, "},
		"two by name": {fieldsOf("jpg", "png"), "",
			"several fields may have the images; name one with decode: {field: NAME}: jpg, png"},
		"two without a name": {fieldsOf("a", "b"), "", "several fields"},
		"not there":          {fieldsOf("jpg"), "png", `no field "png" with files to decode; the fields are: jpg`},
		"no bytes": {[]shm.Field{{Name: "image", DType: shm.Float32, Dims: []uint64{shm.VariableDim}}}, "",
			"nothing to decode"},
		"an array": {[]shm.Field{{Name: "image", DType: shm.Uint8, Dims: []uint64{shm.VariableDim, 3}}}, "",
			"nothing to decode"},
	} {
		settings := map[string]any{"resize": []int{1, 1}}
		if c.field != "" {
			settings["field"] = c.field
		}
		s, err := decode.New(newMemory(t, c.fields, nil), settings)
		if err == nil {
			defer s.Close()
			notes := s.Info().Notes
			err = errors.New(notes[len(notes)-1].Text + notes[0].Text)
		} else if !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%s: %v is no ErrInvalid", name, err)
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	fixed := newMemory(t, fieldsOf("data"), nil)
	fixed.info.Schema, _ = shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{100}}}, false)
	expect.Fails(decode.New(fixed, small))(t, source.ErrInvalid, "leave decode out")
}

func TestRefusesSettings(t *testing.T) {
	for want, settings := range map[string]map[string]any{
		"resize is [], but must be [height, width]":            {},
		"resize is [256], but must be":                         {"resize": []int{256}},
		"resize is [0 5], but each must be in 1..8192":         {"resize": []int{0, 5}},
		"resize is [5 8193]":                                   {"resize": []int{5, 8193}},
		"256.5 is not a whole number":                          {"resize": []any{256.5, 256}},
		`layout is "nchw", but must be chw`:                    {"resize": []int{5, 5}, "layout": "nchw"},
		"resize is [5 5]: 25 pixels, more than max_pixels, 24": {"resize": []int{5, 5}, "max_pixels": 24},
		"max_pixels is 0":                                      {"resize": []int{5, 5}, "max_pixels": 0},
		`fit is "contain", but must be stretch`:                {"resize": []int{5, 5}, "fit": "contain"},
		"memory is 1048576 bytes, but must be in 16MiB":        {"resize": []int{5, 5}, "memory": "1MiB"},
		"bad_samples is \"no\", but must be error or skip":     {"resize": []int{5, 5}, "bad_samples": "no"},
		"memory is -5 bytes":                                   {"resize": []int{5, 5}, "memory": -5},
		`unknown key "size"; known are: bad_samples, field, f`: {"size": []int{5, 5}},
	} {
		if _, err := decode.New(files(t, "one.png"), settings); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", settings, err, want)
		}
	}
}

// withSize changes the size in a PNG's header, and its checksum.
func withSize(data []byte, w, h uint32) []byte {
	data = bytes.Clone(data)
	binary.BigEndian.PutUint32(data[16:], w)
	binary.BigEndian.PutUint32(data[20:], h)
	binary.BigEndian.PutUint32(data[29:], crc32.ChecksumIEEE(data[12:29]))
	return data
}

// Ensure that a file that does not decode is ErrCorrupt, with its name and the reason, and affects
// no other sample.
func TestDamaged(t *testing.T) {
	truncated := func(name string, part float64) []byte {
		data := read(t, name)
		return data[:int(float64(len(data))*part)]
	}
	cases := []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "not a JPEG, PNG or WebP file"},
		{"a text", []byte("hello, this is a text"), "not a JPEG, PNG or WebP file"},
		{"a GIF", read(t, "still.gif"), "a GIF file, not a JPEG, PNG or WebP file"},
		{"a head alone", []byte("\xff\xd8\xff"), "libjpeg: JPEG datastream"},
		{"half a JPEG", truncated("420.jpg", 0.5), "the file is cut off"},
		{"nearly all of a JPEG", truncated("420.jpg", 0.99), "the file is cut off"},
		{"half a progressive JPEG", truncated("progressive.jpg", 0.5), "libjpeg: Bogus Huffman"},
		{"half a PNG", truncated("rgb.png", 0.5), "the PNG file is cut off"},
		{"half a WebP", truncated("lossy.webp", 0.5), "the WebP file is cut off"},
		{"half a lossless WebP", truncated("lossless.webp", 0.5), "the WebP file is cut off"},
		{"a large PNG", withSize(read(t, "rgb.png"), 30_000, 30_000), "the picture is 30000 x 30000: 900000000 pixels; max_pixels is 67108864"},
		{"a wide PNG", withSize(read(t, "rgb.png"), 1<<20, 1), "the picture is 1048576 x 1; sides are at most 65500"},
		{"no pixels", withSize(read(t, "rgb.png"), 0, 1), "a PNG file of 0 x 1 pixels"},
		{"other pixels than said", withSize(read(t, "rgb.png"), 500, 500), "the PNG file is cut off"},
	}
	samples := [][]byte{read(t, "one.png")}
	for _, c := range cases {
		samples = append(samples, c.file)
	}
	s := open(t, newMemory(t, fieldsOf("data"), samples...), small)
	dst := make([]byte, 144)
	for k, c := range cases {
		_, err := s.Read(context.Background(), k+1, dst)
		if !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), s.Where(k+1)+" does not decode: "+c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
		if n, err := s.Read(context.Background(), 0, dst); n != 144 || err != nil || dst[0] != 10 || dst[143] != 30 {
			t.Fatalf("after %s, a good sample: %d bytes, %v", c.name, n, err)
		}
	}
	skipped := open(t, newMemory(t, fieldsOf("data"), samples...),
		map[string]any{"resize": []int{6, 8}, "bad_samples": "skip"})
	for k, c := range cases {
		_, err := readOne(skipped, k+1)
		if k < 3 { // programs may decode these
			kind := new(source.KindError)
			if !errors.As(err, &kind) || !errors.Is(err, source.ErrCorrupt) || !kind.MayLeaveOut || kind.Unknown != (k < 2) ||
				kind.Where != s.Where(k+1) || !strings.HasPrefix(kind.Reason, c.want) {
				t.Errorf("%s: %v; want %q", c.name, err, c.want)
			}
			continue
		}
		if bad := new(source.BadError); !errors.As(err, &bad) || !errors.Is(err, source.ErrCorrupt) ||
			bad.Where != s.Where(k+1) || !strings.HasPrefix(bad.Reason, c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
		if _, err := s.Read(context.Background(), k+1, dst); errors.As(err, new(*source.BadError)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	limited := open(t, files(t, "420.jpg"), map[string]any{"resize": []int{6, 8}, "max_pixels": 125*94 - 1})
	if _, err := readOne(limited, 0); !errors.Is(err, source.ErrCorrupt) ||
		!strings.Contains(err.Error(),
			"420.jpg does not decode: the picture is 125 x 94: 11750 pixels; max_pixels is 11749") {
		t.Error(err)
	}
	enough := open(t, files(t, "420.jpg"), map[string]any{"resize": []int{6, 8}, "max_pixels": 125 * 94})
	expect.Works(readOne(enough, 0))(t)
}

// Ensure that errors of the inner source are returned unchanged, and that a file of an impossible
// size is not read.
func TestInnerErrors(t *testing.T) {
	f := faults.Wrap(files(t, "one.png", "420.jpg"), faults.Rule{Samples: []int{1}, Err: source.ErrChanged})
	s := open(t, f, small)
	if _, err := readOne(s, 1); !errors.Is(err, source.ErrChanged) || errors.Is(err, source.ErrCorrupt) {
		t.Error(err)
	}
	huge := open(t, enormous{files(t, "one.png")}, small)
	expect.Fails(readOne(huge, 0))(t, source.ErrCorrupt, "1099511627776 bytes are no image")
}

type enormous struct{ source.Source }

func (enormous) Size(int) (int, error) { return 1 << 40, nil }

// Ensure the documented result for images with more or fewer than three colours of 8 bits.
func TestColours(t *testing.T) {
	encode := func(m image.Image) []byte {
		var b bytes.Buffer
		fatal.If(t, png.Encode(&b, m))
		return b.Bytes()
	}
	grey16, deep, clear := image.NewGray16(image.Rect(0, 0, 2, 2)), image.NewNRGBA64(image.Rect(0, 0, 2, 2)),
		image.NewNRGBA(image.Rect(0, 0, 2, 2))
	for k := range 4 {
		grey16.SetGray16(k%2, k/2, color.Gray16{Y: 0x64FF})
		deep.SetNRGBA64(k%2, k/2, color.NRGBA64{R: 0x10FF, G: 0x20FF, B: 0x30FF, A: 0x4000})
		clear.SetNRGBA(k%2, k/2, color.NRGBA{R: 200, G: 100, B: 50, A: uint8(k)})
	}
	all := func(r, g, b byte) []byte { return bytes.Repeat([]byte{r, g, b}, 4) }
	for name, c := range map[string]struct {
		file, want []byte
	}{
		"16-bit grey":                      {encode(grey16), all(0x64, 0x64, 0x64)},
		"16 bits with alpha":               {encode(deep), all(0x10, 0x20, 0x30)},
		"transparent colours":              {encode(clear), all(200, 100, 50)},
		"low bits of a grey PNG of Pillow": {read(t, "deep-grey.png"), nil},
	} {
		s := open(t, newMemory(t, fieldsOf("data"), c.file), map[string]any{"resize": []int{2, 2}, "layout": "hwc"})
		got, err := readOne(s, 0)
		if err != nil || c.want != nil && !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}

// Ensure, with the race detector, that concurrent reads of different kinds and sizes do not affect
// each other.
func TestConcurrent(t *testing.T) {
	var names []string
	for name := range distances {
		names = append(names, name)
	}
	slices.Sort(names)
	inner := files(t, names...)
	s := open(t, inner, map[string]any{"resize": []int{30, 40}, "layout": "hwc"})
	want := make([][]byte, len(names))
	for i := range names {
		var err error
		if want[i], err = readOne(s, i); err != nil {
			t.Fatal(err)
		}
	}
	var readers sync.WaitGroup
	for g := range 8 {
		readers.Go(func() {
			for k := range 2 * len(names) {
				i := (k*7 + g) % len(names)
				if got, err := readOne(s, i); err != nil || !bytes.Equal(got, want[i]) {
					t.Errorf("%s: %v, or other pixels", names[i], err)
				}
			}
		})
	}
	readers.Wait()
}

// blocky is a source whose samples lie in one block.
type blocky struct{ *memory }

func (b blocky) Blocks() int              { return 1 }
func (b blocky) BlockOf(int) int          { return 0 }
func (b blocky) Block(int) (first, n int) { return 0, len(b.files) }
func (b blocky) ReadBlock(ctx context.Context, _ int, each func(i int, sample []byte) error) error {
	for i, f := range b.files {
		if err := each(i, f); err != nil {
			return err
		}
	}
	return nil
}

// Ensure that a source with blocks stays one, and that a bad file of a block ends ReadBlock with
// its name.
func TestBlocks(t *testing.T) {
	s := open(t, blocky{files(t, "one.png", "420.jpg", "still.gif", "rgb.png")}, small)
	var got [][]byte
	err := s.(source.Blocks).ReadBlock(context.Background(), 0, func(i int, sample []byte) error {
		got = append(got, bytes.Clone(sample))
		return nil
	})
	if !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), "still.gif does not decode") ||
		len(got) != 2 {
		t.Fatalf("%d samples, %v", len(got), err)
	}
	for i := range got {
		if want, err := readOne(s, i); err != nil || !bytes.Equal(got[i], want) {
			t.Errorf("sample %d is another in its block, %v", i, err)
		}
	}
	if _, ok := open(t, files(t, "one.png"), small).(source.Blocks); ok {
		t.Error("blocks where there are none")
	}
}
