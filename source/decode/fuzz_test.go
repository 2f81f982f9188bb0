package decode_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
)

// FuzzDecode ensures that any bytes are pixels or ErrCorrupt with the file's name, and that no byte
// after the sample is written.
func FuzzDecode(f *testing.F) {
	seeds, err := os.ReadDir("testdata")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range seeds {
		if info, err := seed.Info(); err == nil && info.Mode().IsRegular() && info.Size() < 6000 &&
			!strings.HasSuffix(seed.Name(), ".rgb") && !strings.HasSuffix(seed.Name(), ".py") {
			f.Add(read(f, seed.Name()))
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		m := newMemory(t, fieldsOf("data"), file)
		for _, settings := range []map[string]any{{"resize": []int{5, 7}, "max_pixels": 1 << 18},
			{"resize": []int{70, 1}, "layout": "hwc", "max_pixels": 1 << 18}} {
			s := open(t, m, settings)
			n := 3 * 5 * 7
			if settings["layout"] == "hwc" {
				n = 3 * 70
			}
			dst := bytes.Repeat([]byte{0xA5}, n+8)
			got, err := s.Read(context.Background(), 0, dst[:n])
			switch {
			case err == nil && got != n:
				t.Errorf("%d bytes, want %d", got, n)
			case err != nil && (!errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), "file 0")):
				t.Error(err)
			case !bytes.Equal(dst[n:], bytes.Repeat([]byte{0xA5}, 8)):
				t.Error("bytes after the sample were written")
			}
		}
	})
}
