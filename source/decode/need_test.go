package decode

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stocached/stocached/source/sourcetest"
)

// interlacedPNG is a black picture of any kind: few bytes with many pixels.
func interlacedPNG(t testing.TB, w, h int, depth, colour byte) []byte {
	t.Helper()
	channels := map[byte]int{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	for _, pass := range [][4]int{{8, 8, 0, 0}, {8, 8, 4, 0}, {4, 8, 0, 4}, {4, 4, 2, 0}, {2, 4, 0, 2}, {2, 2, 1, 0},
		{1, 2, 0, 1}} {
		pw, ph := (w-pass[2]+pass[0]-1)/pass[0], (h-pass[3]+pass[1]-1)/pass[1]
		row := make([]byte, 1+(pw*channels*int(depth)+7)/8)
		for range ph {
			if _, err := z.Write(row); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(name string, data []byte) {
		file = binary.BigEndian.AppendUint32(file, uint32(len(data)))
		at := len(file)
		file = append(append(file, name...), data...)
		file = binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(file[at:]))
	}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(w)), uint32(h))
	chunk("IHDR", append(head, depth, colour, 0, 0, 1))
	if colour == 3 {
		chunk("PLTE", make([]byte, 3))
	}
	chunk("IDAT", packed.Bytes())
	chunk("IEND", nil)
	return file
}

// enlarged is a file of testdata with more pixels in its header: decoders allocate the memory
// before they find that data is missing.
func enlarged(t testing.TB, name string, w, h int) []byte {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	switch filepath.Ext(name) {
	case ".jpg":
		for at := 2; ; at += 2 + int(binary.BigEndian.Uint16(file[at+2:])) {
			if marker := file[at+1]; marker >= 0xc0 && marker <= 0xc2 {
				binary.BigEndian.PutUint16(file[at+5:], uint16(h))
				binary.BigEndian.PutUint16(file[at+7:], uint16(w))
				return file
			}
		}
	case ".webp":
		switch string(file[12:16]) {
		case "VP8 ":
			binary.LittleEndian.PutUint16(file[26:], uint16(w))
			binary.LittleEndian.PutUint16(file[28:], uint16(h))
		case "VP8L":
			rest := binary.LittleEndian.Uint32(file[21:]) &^ (1<<28 - 1)
			binary.LittleEndian.PutUint32(file[21:], rest|uint32(w-1)|uint32(h-1)<<14)
		}
	case ".gif":
		at := bytes.IndexByte(file[13+3*(2<<(file[10]&7)):], ',') + 13 + 3*(2<<(file[10]&7))
		for _, at := range []int{6, at + 5} {
			binary.LittleEndian.PutUint16(file[at:], uint16(w))
			binary.LittleEndian.PutUint16(file[at+2:], uint16(h))
		}
	}
	return file
}

// bombs make files that need much more memory than their size.
var bombs = map[string]func(t testing.TB, w, h int) []byte{
	"interlaced, 16 bits, alpha": func(t testing.TB, w, h int) []byte { return interlacedPNG(t, w, h, 16, 6) },
	"interlaced, 16 bits":        func(t testing.TB, w, h int) []byte { return interlacedPNG(t, w, h, 16, 2) },
	"interlaced, 16 bits, grey":  func(t testing.TB, w, h int) []byte { return interlacedPNG(t, w, h, 16, 0) },
	"interlaced, grey and alpha": func(t testing.TB, w, h int) []byte { return interlacedPNG(t, w, h, 8, 4) },
	"interlaced, a palette":      func(t testing.TB, w, h int) []byte { return interlacedPNG(t, w, h, 2, 3) },
	"interlaced, black or white": func(t testing.TB, w, h int) []byte { return interlacedPNG(t, w, h, 1, 0) },
	"PNG": func(t testing.TB, w, h int) []byte {
		return encoded(t, png.Encode, image.NewNRGBA(image.Rect(0, 0, w, h)))
	},
	"PNG, grey": func(t testing.TB, w, h int) []byte {
		return encoded(t, png.Encode, image.NewGray(image.Rect(0, 0, w, h)))
	},
	"PNG, a palette": func(t testing.TB, w, h int) []byte {
		return encoded(t, png.Encode, image.NewPaletted(image.Rect(0, 0, w, h), twoColours))
	},
	"JPEG": func(t testing.TB, w, h int) []byte {
		return encoded(t, encodeJPEG, image.NewRGBA(image.Rect(0, 0, w, h)))
	},
	"JPEG, grey": func(t testing.TB, w, h int) []byte {
		return encoded(t, encodeJPEG, image.NewGray(image.Rect(0, 0, w, h)))
	},
	"JPEG, progressive":           func(t testing.TB, w, h int) []byte { return enlarged(t, "progressive.jpg", w, h) },
	"JPEG, CMYK":                  func(t testing.TB, w, h int) []byte { return enlarged(t, "cmyk.jpg", w, h) },
	"JPEG, RGB":                   func(t testing.TB, w, h int) []byte { return enlarged(t, "rgb.jpg", w, h) },
	"JPEG, all samples of colour": func(t testing.TB, w, h int) []byte { return enlarged(t, "444.jpg", w, h) },
	"WebP":                        func(t testing.TB, w, h int) []byte { return enlarged(t, "lossy.webp", w, h) },
	"WebP, lossless":              func(t testing.TB, w, h int) []byte { return enlarged(t, "lossless.webp", w, h) },
	"GIF": func(t testing.TB, w, h int) []byte {
		return encoded(t, encodeGIF, image.NewPaletted(image.Rect(0, 0, w, h), twoColours))
	},
	"the first picture of a GIF":     func(t testing.TB, w, h int) []byte { return enlarged(t, "moving.gif", w, h) },
	"a GIF with less than announced": func(t testing.TB, w, h int) []byte { return enlarged(t, "still.gif", w, h) },
}

var twoColours = color.Palette{color.Black, color.White}

func encodeJPEG(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }
func encodeGIF(w io.Writer, m image.Image) error  { return gif.Encode(w, m, nil) }

func encoded(t testing.TB, encode func(io.Writer, image.Image) error, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Ensure that need is at least the memory that a picture takes, and not much more.
func TestNeed(t *testing.T) {
	files := map[string][]byte{}
	for name, bomb := range bombs {
		files[name] = bomb(t, 1203, 901)
	}
	paths, err := filepath.Glob("testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if file, err := os.ReadFile(path); err == nil && !strings.HasSuffix(path, ".rgb") &&
			!strings.HasSuffix(path, ".cropped") && !strings.HasSuffix(path, ".padded") && !strings.HasSuffix(path, ".py") {
			files[path] = file
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, file := range files {
		f, err := formatOf(file)
		if err != nil {
			t.Fatal(name, err)
		}
		s := new(scratch)
		size, err := s.size(context.Background(), f, file, 1<<30)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, fit := range []string{"stretch", "crop", "pad"} {
			o := options{Resize: []int{300, 200}, Layout: "hwc", Fit: fit}
			turned := turnOf(file)
			across, down := o.cuts(turned.shown(size))
			need := f.need(file, size) + turned.resizeNeed(size, across, down)
			dst := make([]byte, 3*300*200)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			img, err := new(scratch).image(context.Background(), f, file, size)
			if err == nil {
				s := new(scratch)
				p := s.pixelsOf(img, size, f)
				s.put(&p, turned, &o, across, down, dst)
			}
			runtime.ReadMemStats(&after)
			const fixed = 150 << 10 // buffers of readers and tables, for any picture
			took := int64(after.TotalAlloc - before.TotalAlloc)
			if took > need+fixed || err == nil && f.name != "WebP" && need > 4*took+fixed {
				t.Errorf("%s, %v, %s: %d bytes were taken, %d are said to be needed (%v)", name, size, fit, took, need, err)
			}
		}
	}
}

// Ensure that a picture takes at most the estimated memory in the helper. For a file of one scan the estimate
// is not far too high.
func TestHelperNeed(t *testing.T) {
	if testing.Short() {
		t.Skip("not under the race detector: one goroutine makes large pictures")
	}
	path := sourcetest.Helper(t, "../..")
	for name, bomb := range bombs {
		if !strings.Contains(name, "JPEG") && name != "PNG" {
			continue
		}
		for _, size := range []image.Point{{2900, 1900}, {300, 9000}} {
			for _, fit := range []string{"stretch", "crop", "pad"} {
				all, err := openHelpers(path)
				if err != nil {
					t.Fatal(err)
				}
				before := mostMemoryOf(t, all.seats[0].process.cmd.Process.Pid)
				file := bomb(t, size.X, size.Y)
				o := options{Resize: []int{224, 300}, Layout: "hwc", Fit: fit, MaxPixels: 1 << 30}
				dst := make([]byte, 3*224*300)
				err = (&scratch{helpers: all}).picture(context.Background(), file, &o, dst)
				took := mostMemoryOf(t, all.seats[0].process.cmd.Process.Pid) - before
				f, _ := formatOf(file)
				across, down := o.cuts(size)
				need := f.helperNeed(file, size, across, down, len(dst))
				if took > need+1<<20 || name == "JPEG" && fit == "stretch" && need > 2*took+4<<20 {
					t.Errorf("%s, %v, %s: %d bytes were taken, %d are said to be needed (%v)", name, size, fit, took, need, err)
				}
				all.close()
			}
		}
	}
}

// Ensure that headers of any kind are read to their end, and that an unknown need is estimated high
// enough.
func TestNeedOfDamagedFiles(t *testing.T) {
	for _, name := range []string{"progressive.jpg", "cmyk.jpg", "rgb.png", "lossy.webp", "still.gif"} {
		file, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := formatOf(file)
		if err != nil {
			t.Fatal(err)
		}
		for n := len(f.magic); n < min(len(file), 2000); n++ {
			f.need(file[:n:n], image.Pt(100, 100))
			f.helperNeed(file[:n:n], image.Pt(100, 100), cut{}, cut{}, 1)
		}
	}
	for _, file := range []string{"", "\xff\xd8\xff\xff\xff\xff", "\xff\xd8\xff\xc0\x00\x02",
		"\xff\xd8\xff\xc2\xff\xff\x08\x00\x01\x00\x01\x04", "\xff\xd8\xff\xe1\x00\x00\xff\xda\x00\x00"} {
		formats[0].need([]byte(file), image.Pt(10, 10))
		formats[0].helperNeed([]byte(file), image.Pt(10, 10), cut{}, cut{}, 1)
	}
}
