package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that one folder of files is served as it is, and decoded, through limits and retries, with
// errors that name the file.
func TestServeFiles(t *testing.T) {
	t.Setenv("STOCACHED_DECODE", sourcetest.Helper(t, "../.."))
	dir := t.TempDir()
	picture, err := os.ReadFile("../../source/decode/testdata/500x375.jpg")
	fatal.If(t, err)
	files := append(slices.Repeat([][]byte{picture}, 5), []byte("this is no picture"))
	for k, data := range files {
		fatal.If(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.jpg", k)), data, 0o600))
	}
	s := newServedCaches(t, func(string) {},
		fmt.Sprintf(`name: encoded, size: all, source: {kind: dir, path: %s, glob: "*.jpg", limits: {concurrency: 2}, `+
			`retry: {tries: 2, seconds: 1}}`, dir),
		fmt.Sprintf("name: decoded, source: {kind: dir, path: %s}, decode: {resize: [8, 6], layout: chw}", dir))
	ctx := context.Background()
	encoded, decoded := s.dialFor("encoded", 0), s.dialFor("decoded", 0)
	indices := []int{5, 0, 3, 1, 2, 4}
	for range 2 { // from the source, then from the cache
		samples := fatal.Value(encoded.FetchSamples(ctx, indices))(t)
		for k, i := range indices {
			if !bytes.Equal(samples[k], files[i]) {
				t.Errorf("file %d: %d bytes, want %d", i, len(samples[k]), len(files[i]))
			}
		}
	}
	// a sample that the server reads is a miss
	if stats, err := encoded.Stats(); err != nil || stats.Stored != 6 || stats.Hits != 6 {
		t.Errorf("%d stored, %d hits, %v", stats.Stored, stats.Hits, err)
	}
	if f := decoded.Info().Fields[0]; decoded.Info().Variable || decoded.Info().SampleBytes != 3*8*6 || f.Name != "image" ||
		fmt.Sprint(f.Dims) != "[3 8 6]" {
		t.Errorf("%+v of %d bytes", f, decoded.Info().SampleBytes)
	}
	dst := make([]byte, 6*decoded.Info().SampleBytes)
	err = decoded.Fetch(ctx, []int{0, 1, 2, 3, 4, 5}, dst, decoded.Info().SampleBytes)
	var failed *stocclient.FetchError
	if !errors.As(err, &failed) || len(failed.Failures) != 1 || failed.Failures[0].Index != 5 ||
		failed.Failures[0].Code != control.CodeDamaged || !strings.Contains(err.Error(), "005.jpg") {
		t.Errorf("a file that is no picture: %v", err)
	}
	for k := range 5 { // TestSourceDecoded compares pixels
		if row := dst[k*144:][:144]; bytes.Equal(row, make([]byte, 144)) || !bytes.Equal(row, dst[:144]) {
			t.Errorf("picture %d is %v", k, row)
		}
	}
}
