package decode_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/sourcetest"
)

// exif makes a marker APP1 whose first directory has a few tags before the orientation.
func exif(order binary.AppendByteOrder, orientation, before int) []byte {
	tiff := []byte("II*\x00")
	if order.String() == "BigEndian" {
		tiff = []byte("MM\x00*")
	}
	tiff = order.AppendUint32(tiff, 8)
	tiff = order.AppendUint16(tiff, uint16(before+1))
	for k := range before {
		tiff = append(order.AppendUint16(order.AppendUint16(tiff, uint16(0x100+k)), 4), make([]byte, 8)...)
	}
	tiff = order.AppendUint16(order.AppendUint16(tiff, 0x112), 3)
	tiff = order.AppendUint16(order.AppendUint32(tiff, 1), uint16(orientation))
	tiff = append(tiff, 0, 0, 0, 0, 0, 0)
	data := append([]byte("Exif\x00\x00"), tiff...)
	return append(binary.BigEndian.AppendUint16([]byte{0xff, 0xe1}, uint16(len(data)+2)), data...)
}

// withMarker puts a marker before the others of a JPEG.
func withMarker(file, marker []byte) []byte {
	return append(append(bytes.Clone(file[:2]), marker...), file[2:]...)
}

// Ensure that Go and the helper apply the orientation of EXIF data: each pixel is where the definition
// of the orientation has it. Go's pixels are those of the helper in each fit and layout.
func TestOrientation(t *testing.T) {
	plain := read(t, "420.jpg")
	const w, h = 40, 30 // of the result, as the file has it
	check := func(t *testing.T) {
		want, err := readOne(open(t, newMemory(t, fieldsOf("data"), plain), map[string]any{"resize": []int{h, w}}), 0)
		if err != nil {
			t.Fatal(err)
		}
		for o := 1; o <= 8; o++ {
			order := []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian}[o%2]
			file := withMarker(plain, exif(order, o, o%3))
			size := []int{h, w}
			if o > 4 {
				size = []int{w, h}
			}
			got, err := readOne(open(t, newMemory(t, fieldsOf("data"), file), map[string]any{"resize": size}), 0)
			if err != nil {
				t.Fatal(err)
			}
			for k := range got {
				plane, y, x := k/(w*h), k%(w*h)/size[1], k%size[1]
				at := map[int][2]int{1: {x, y}, 2: {w - 1 - x, y}, 3: {w - 1 - x, h - 1 - y}, 4: {x, h - 1 - y}, 5: {y, x},
					6: {y, h - 1 - x}, 7: {w - 1 - y, h - 1 - x}, 8: {w - 1 - y, x}}[o]
				if d := int(got[k]) - int(want[plane*w*h+at[1]*w+at[0]]); d < -1 || d > 1 {
					t.Fatalf("orientation %d: plane %d, row %d, column %d is off by %d", o, plane, y, x, d)
				}
			}
		}
	}
	t.Run("Go", func(t *testing.T) {
		t.Setenv("STOCACHED_DECODE", "")
		check(t)
	})
	t.Run("helper", func(t *testing.T) {
		helper(t)
		check(t)
	})
}

func TestOrientationInEachFit(t *testing.T) {
	helper := sourcetest.Helper(t, "../..")
	for _, name := range []string{"420.jpg", "grey.jpg", "cmyk.jpg", "progressive.jpg", "small.jpg"} {
		for o := 1; o <= 8; o++ {
			file := withMarker(read(t, name), exif(binary.LittleEndian, o, 2))
			for _, fit := range []string{"stretch", "crop", "pad"} {
				for _, size := range [][]int{{20, 91}, {90, 21}, {33, 33}} {
					for _, layout := range []string{"chw", "hwc"} {
						settings := map[string]any{"resize": size, "fit": fit, "layout": layout}
						var got [2][]byte
						for k, decoder := range []string{"", helper} {
							t.Setenv("STOCACHED_DECODE", decoder)
							var err error
							if got[k], err = readOne(open(t, newMemory(t, fieldsOf("data"), file), settings), 0); err != nil {
								t.Fatal(name, err)
							}
						}
						sum := 0
						for k := range got[0] {
							d := int(got[0][k]) - int(got[1][k])
							sum += max(d, -d)
						}
						if average := float64(sum) / float64(len(got[0])); average > 0.7 {
							t.Errorf("%s, orientation %d, %v: off by %.2f on average", name, o, settings, average)
						}
					}
				}
			}
		}
	}
}

// Ensure that what is no orientation is none, as in cimage/src/orientation.c.
func TestOrientationThatIsNone(t *testing.T) {
	good := exif(binary.LittleEndian, 6, 1)[4:]
	if got := decode.Orientation(good); got != 6 {
		t.Fatal(got)
	}
	for n := range good[:len(good)-4] {
		if got := decode.Orientation(good[:n:n]); got != 1 {
			t.Errorf("the first %d bytes: %d", n, got)
		}
	}
	for name, change := range map[string]func(data []byte){
		"another order":                 func(data []byte) { data[6] = 'M' },
		"no EXIF":                       func(data []byte) { data[0] = 'x' },
		"a directory that is not there": func(data []byte) { data[13] = 0xff },
		"a directory at the end":        func(data []byte) { data[10] = byte(len(data) - 6 - 1) },
		"another type":                  func(data []byte) { data[30] = 4 },
		"0":                             func(data []byte) { data[36] = 0 },
		"9":                             func(data []byte) { data[36] = 9 },
		"262":                           func(data []byte) { data[37] = 1 },
	} {
		data := bytes.Clone(good)
		change(data)
		if got := decode.Orientation(data); got != 1 {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// FuzzOrientation ensures that any EXIF data have an orientation of 1 to 8.
func FuzzOrientation(f *testing.F) {
	for o := range 10 {
		f.Add(exif(binary.LittleEndian, o, o)[4:])
		f.Add(exif(binary.BigEndian, o, o)[4:])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got := decode.Orientation(data[:len(data):len(data)]); got < 1 || got > 8 {
			t.Error(fmt.Sprint(got))
		}
	})
}
