package raw_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/raw"
	"github.com/stocached/stocached/source/sourcetest"
)

// write makes a file of n records of size bytes each after a head, and returns the records.
func write(t *testing.T, path string, head, n, size int) (records [][]byte) {
	t.Helper()
	data := bytes.Repeat([]byte{0xEE}, head)
	for k := range n {
		record := make([]byte, size)
		for j := range record {
			record[j] = byte(k*31 + j)
		}
		records = append(records, record)
		data = append(data, record...)
	}
	fatal.If(t, os.WriteFile(path, data, 0o600))
	return records
}

func TestSuite(t *testing.T) {
	for name, settings := range map[string]source.Settings{
		"plain bytes":    {"sample_bytes": 24},
		"an array each":  {"shape": []int{2, 3}, "dtype": "float32"},
		"after a header": {"sample_bytes": 24, "offset": 100},
	} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				path := filepath.Join(t.TempDir(), "records.bin")
				own := source.Settings{"path": path}
				for k, v := range settings {
					own[k] = v
				}
				head, _ := settings["offset"].(int)
				return sourcetest.Fixture{
					Open:  func(*testing.T) (source.Source, error) { return raw.Kind.Open(context.Background(), own) },
					Want:  write(t, path, head, 7, 24),
					Files: []string{path},
				}
			})
		})
	}
}

func TestRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.bin")
	write(t, path, 0, 3, 10)
	for name, c := range map[string]struct {
		settings source.Settings
		want     string // part of the message
	}{
		"no path": {source.Settings{"sample_bytes": 10}, "no path"},
		"no size": {source.Settings{"path": path}, "give either sample_bytes or shape"},
		"two sizes": {source.Settings{"path": path, "sample_bytes": 10, "shape": []int{10}},
			"give either sample_bytes or shape"},
		"a rest": {source.Settings{"path": path, "sample_bytes": 7},
			"30 bytes, which is not a whole number of records of 7"},
		"negative":      {source.Settings{"path": path, "sample_bytes": -1}, "sample_bytes is -1"},
		"empty shape":   {source.Settings{"path": path, "shape": []int{0}}, "below 1"},
		"unknown dtype": {source.Settings{"path": path, "shape": []int{5}, "dtype": "float33"}, "float33"},
		"unknown key":   {source.Settings{"path": path, "sample_bytes": 10, "ofset": 3}, `unknown key "ofset"; known are: dtype, offset, path, remote, sample_bytes, shape`},
		"wrong type":    {source.Settings{"path": path, "sample_bytes": "ten"}, "sample_bytes"},
		"a folder":      {source.Settings{"path": filepath.Dir(path), "sample_bytes": 10}, "not a regular file"},
		"far offset":    {source.Settings{"path": path, "sample_bytes": 10, "offset": 30}, "after the first 30"},
	} {
		s, err := raw.Kind.Open(context.Background(), c.settings)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	expect.Fails(raw.Kind.Open(context.Background(), source.Settings{"path": path + ".none", "sample_bytes": 10}))(t, os.ErrNotExist)
}
