package decode_test

import (
	"path/filepath"
	"testing"
)

// How far pixels may be from those that Pillow makes of the same file (testdata/make.py): at most, and on average. Decoders of JPEG and WebP round differently, and
// Pillow resizes down first and across then where that is less work.
var distances = map[string]struct {
	most    int
	average float64
}{
	"420.jpg": {1, 0.15}, "422.jpg": {1, 0.15}, "444.jpg": {1, 0.15}, "progressive.jpg": {1, 0.15}, "rgb.jpg": {1, 0.15}, "grey.jpg": {1, 0.15}, "cmyk.jpg": {1, 0.15},
	"exif6.jpg": {1, 0.15}, "small.jpg": {1, 0.15}, "lossy.webp": {1, 0.15}, "alpha.webp": {1, 0.15}, "tall.png": {1, 0.15},
	"rgb.png": {}, "same.png": {}, "one.png": {}, "alpha.png": {}, "palette.png": {}, "see-through.png": {}, "grey.png": {}, "grey-alpha.png": {}, "bits.png": {},
	"deep.png": {}, "lossless.webp": {}, "lossless-alpha.webp": {}, "still.gif": {}, "moving.gif": {},
}

func TestAgainstPillow(t *testing.T) {
	goldens, err := filepath.Glob("testdata/*.rgb")
	if err != nil || len(goldens) != len(distances)+1 { // of moving.webp, which is refused
		t.Fatalf("%d goldens for %d files, %v", len(goldens), len(distances), err)
	}
	for name, may := range distances {
		want := read(t, name+".rgb")
		s := open(t, files(t, name), map[string]any{"resize": []int{30, 40}, "layout": "hwc"})
		got, err := readOne(s, 0)
		if err != nil || len(got) != len(want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
			continue
		}
		most, sum := 0, 0
		for k := range got {
			d := int(got[k]) - int(want[k])
			d = max(d, -d)
			most, sum = max(most, d), sum+d
		}
		average := float64(sum) / float64(len(got))
		t.Logf("%s: %d at most, %.2f on average", name, most, average)
		if most > may.most || average > may.average {
			t.Errorf("%s: %d at most, %.3f on average; may be %d and %.3f", name, most, average, may.most, may.average)
		}
	}
}
