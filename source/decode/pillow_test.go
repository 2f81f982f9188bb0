package decode_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// distance is how far pixels are from those of Pillow for the same file: at most, and on average.
type distance struct {
	most    int
	average float64
}

// distances are those of the files in testdata. Pillow resizes down first if that is less work, and another libjpeg-turbo
// made its pixels.
var distances = func() map[string]distance {
	all := map[string]distance{}
	for _, name := range strings.Fields(`420.jpg 422.jpg 444.jpg progressive.jpg rgb.jpg grey.jpg cmyk.jpg small.jpg
		rgb.png same.png one.png tall.png alpha.png palette.png see-through.png grey.png grey-alpha.png bits.png deep.png
		lossy.webp alpha.webp lossless.webp lossless-alpha.webp moving.webp`) {
		all[name] = distance{1, 0.15}
	}
	return all
}()

// compared decodes one file and compares it with Pillow's result.
func compared(t *testing.T, name string, file, want []byte, h, w int, fit string) (all distance, off float64) {
	t.Helper()
	s := open(t, newMemory(t, fieldsOf("data"), file), map[string]any{"resize": []int{h, w}, "layout": "hwc", "fit": fit})
	got, err := readOne(s, 0)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%s, %s: %d bytes, %v", name, fit, len(got), err)
	}
	sum, beyond := 0, 0
	for k := range got {
		d := int(got[k]) - int(want[k])
		d = max(d, -d)
		all.most, sum = max(all.most, d), sum+d
		if d > 1 {
			beyond++
		}
	}
	all.average = float64(sum) / float64(len(got))
	return all, float64(beyond) / float64(len(got))
}

func TestAgainstPillow(t *testing.T) {
	goldens, err := filepath.Glob("testdata/*.rgb")
	if err != nil || len(goldens) != len(distances) {
		t.Fatalf("%d goldens for %d files, %v", len(goldens), len(distances), err)
	}
	cropped, err := filepath.Glob("testdata/*.cropped")
	if err != nil || len(cropped) < 7 {
		t.Fatalf("%d goldens, %v", len(cropped), err)
	}
	for name, may := range distances {
		for fit, suffix := range map[string]string{"stretch": ".rgb", "crop": ".cropped", "pad": ".padded"} {
			if _, err := os.Stat(filepath.Join("testdata", name+suffix)); err != nil {
				continue // not all of them are cropped and padded
			}
			is, _ := compared(t, name, read(t, name), read(t, name+suffix), 30, 40, fit)
			t.Logf("%s, %s: %d at most, %.2f on average", name, fit, is.most, is.average)
			if is.most > may.most || is.average > may.average {
				t.Errorf("%s, %s: %d at most, %.3f on average; may be %d and %.3f", name, fit, is.most, is.average, may.most,
					may.average)
			}
		}
	}
}

// Ensure, with the installed Pillow, that docs/spec/sources.md is right about pictures of any size,
// shape and noise.
func TestAgainstPillowHere(t *testing.T) {
	if testing.Short() {
		t.Skip("not under the race detector: one goroutine compares pixels")
	}
	python := os.Getenv("STOCACHED_TEST_PYTHON")
	if python == "" {
		python = "../../.venv/bin/python"
	}
	if out, err := exec.Command(python, "-c", "import PIL, numpy").CombinedOutput(); err != nil {
		t.Skipf("there is no Python with Pillow here (make setup-demo installs it; STOCACHED_TEST_PYTHON names one): %v %.200s", err, out)
	}
	folder := t.TempDir()
	const seed, count = "1", "24"
	if out, err := exec.Command(python, "testdata/make.py", folder, seed, count).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.rgb"))
	if err != nil || fmt.Sprint(len(paths)) != count {
		t.Fatal(paths, err)
	}
	all := map[string]*distance{}
	beyond, files := map[string]float64{}, map[string]float64{}
	for _, path := range paths {
		path = strings.TrimSuffix(path, ".rgb")
		var k, h, w int
		var form string
		if _, err := fmt.Sscanf(filepath.Base(path), "%d-%d-%d-%s", &k, &h, &w, &form); err != nil {
			t.Fatal(path, err)
		}
		for fit, suffix := range map[string]string{"stretch": ".rgb", "crop": ".cropped", "pad": ".padded"} {
			golden := path + suffix
			file, err1 := os.ReadFile(path)
			want, err2 := os.ReadFile(golden)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			is, off := compared(t, path, file, want, h, w, fit)
			name := form + suffix
			if all[name] == nil {
				all[name] = &distance{}
			}
			all[name].most = max(all[name].most, is.most)
			all[name].average += is.average
			beyond[name] += off
			files[name]++
		}
	}
	for name, is := range all {
		average, part := is.average/files[name], beyond[name]/files[name]
		t.Logf("%s: %d at most, %.3f on average, %.2f %% beyond 1", name, is.most, average, 100*part)
		lossy := strings.Contains(name, "jpg")
		if most := map[bool]int{true: 2, false: 1}[lossy]; is.most > most || average > 0.25 || part > 0.02 {
			t.Errorf("%s: %d at most, %.3f on average, %.2f %% beyond 1", name, is.most, average, 100*part)
		}
	}
}
