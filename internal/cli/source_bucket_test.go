package cli

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

const bucketOut = "s3://" + s3test.Bucket + "/packed"

// Ensure that pack refuses an OUT that is an address, and says how a dataset gets there.
func TestPackRefusesAnAddress(t *testing.T) {
	small, flags := rawSource(t, 92)
	for _, out := range []string{bucketOut, "https://me:secret@127.0.0.1/packed"} {
		fails(t, exitUsage, []string{source.Public(out) + " is an address", "pack into a folder", "aws s3 sync"},
			args("pack", small, out, flags)...)
	}
}

// Ensure that the commands find out that a dataset in block files lies at an address, in a bucket and on a web
// server, and that they take other addresses for a tree of files.
func TestKindOfAnAddress(t *testing.T) {
	small, flags := rawSource(t, 92)
	s := s3test.Servers(t)["gofakes3"](t)
	remote := "remote={endpoint: " + s.URL + "}"
	local := filepath.Join(t.TempDir(), "packed")
	ok(t, args("pack", small, local, flags)...)
	for name, data := range sourcetest.Tree(t, local) {
		s.Put(t, "packed/"+name, []byte(data))
		s.Put(t, "packed.v2/"+name, []byte(data))
	}
	s.Put(t, "files/a.jpg", []byte("a"))
	s.Put(t, "files/b.jpg", []byte("bc"))
	for path, want := range map[string]string{bucketOut: "block", bucketOut + "/": "block", bucketOut + ".v2": "block",
		"s3://" + s3test.Bucket + "/files": "dir", s.URL + "/" + s3test.Bucket + "/packed": "block"} {
		flags := []string{"--json"}
		if strings.HasPrefix(path, "s3:") {
			flags = append(flags, "--source", remote)
		}
		info := decode[struct {
			Kind    string
			Samples int
		}](t, ok(t, args("source", "info", path, flags)...))
		if samples := map[string]int{"block": 92, "dir": 2}[want]; info.Kind != want || info.Samples != samples {
			t.Errorf("%s: kind %s with %d samples, want %s with %d", path, info.Kind, info.Samples, want, samples)
		}
	}
	fails(t, exitUsage, []string{"--kind"}, "source", "info", "s3://"+s3test.Bucket+"/records.bin", "--source", remote)
	s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusForbidden) })
	fails(t, exitPermission, []string{"dataset.json", "--kind"}, "source", "info", bucketOut, "--source", remote)
}
