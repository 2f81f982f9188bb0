package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that each epoch reads the same pictures, the first from the files and the others from the cache.
func TestTrain(t *testing.T) {
	t.Setenv("STOCACHED_DECODE", sourcetest.Helper(t, "../.."))
	charts, err := filepath.Glob("../../docs/images/w*.png")
	if err != nil || len(charts) < 2 {
		t.Fatal(charts, err)
	}
	folder := filepath.Join(t.TempDir(), "pictures")
	if err := os.MkdirAll(filepath.Join(folder, "charts"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, chart := range charts {
		data, err := os.ReadFile(chart)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "charts", filepath.Base(chart)), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := train(t.Context(), &out, folder, 3, 64<<20); err != nil {
		t.Fatal(err)
	}
	n := len(charts)
	lines := regexp.MustCompile(`epoch (\d): mean (\d+\.\d+), (\d+) of (\d+) samples from the cache\n`).FindAllStringSubmatch(out.String(), -1)
	if len(lines) != 3 {
		t.Fatal(out.String())
	}
	for k, line := range lines {
		if hits := n * min(k, 1); line[2] != lines[0][2] || line[2] == "0.00" || line[3] != strconv.Itoa(hits) || line[4] != strconv.Itoa(n) {
			t.Errorf("%q, and not %d of %d samples from the cache", line[0], hits, n)
		}
	}
}
