package tar_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// Ensure that odd shards are read, or refused, as testdata/cases.json says. Tests of Python read it too.
func TestCases(t *testing.T) {
	var cases []struct {
		Name    string
		Shard   []byte // gzip
		Samples []map[string]string
		Refused string
	}
	text, err := os.ReadFile("testdata/cases.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	fatal.If(t, err)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			packed := fatal.Value(gzip.NewReader(bytes.NewReader(c.Shard)))(t)
			shard := fatal.Value(io.ReadAll(packed))(t)
			path := writeFile(t, filepath.Join(t.TempDir(), "no.tar"), shard)
			s, err := openTar(t, source.Settings{"path": path})
			if c.Refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.Refused) ||
					!errors.Is(err, source.ErrInvalid) && !errors.Is(err, source.ErrCorrupt) {
					t.Errorf("%v; want %q", err, c.Refused)
				}
				return
			}
			fatal.If(t, err)
			var got []map[string]string
			for i := range s.Info().Samples {
				got = append(got, sample(t, s, i))
			}
			if !reflect.DeepEqual(got, c.Samples) {
				t.Errorf("%q; want %q", got, c.Samples)
			}
		})
	}
}
