package served_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"
)

// There are as many readers as lanes.
func TestReadersByDefault(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	resize := map[string]any{"resize": []int{8, 8}}
	for _, c := range []struct {
		processors, asked, want int
		decode                  map[string]any
	}{{2, 0, 4, nil}, {1, 0, 4, resize}, {2, 0, 8, resize}, {7, 0, 28, resize}, {8, 0, 32, resize},
		{64, 0, 32, resize}, {2, 3, 3, resize}} {
		runtime.GOMAXPROCS(c.processors)
		o := served.Options{Name: "pets", Parallel: c.asked, Decode: c.decode}
		if err := o.Check(); err != nil || o.Parallel != c.want {
			t.Errorf("%d processors, parallel %d, decode %v: %d readers, want %d; %v", c.processors, c.asked, c.decode,
				o.Parallel, c.want, err)
		}
	}
}

// Ensure that a size that holds the whole dataset makes the segment of the size all, and no larger one.
func TestSizeOfTheDatasetIsEnough(t *testing.T) {
	folder := t.TempDir()
	var shard bytes.Buffer
	archive := tar.NewWriter(&shard)
	for k := range 50 {
		data := make([]byte, 100+1000*k)
		name := fmt.Sprintf("%02d.jpg", k)
		fatal.If(t, archive.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o600}))
		_, err := archive.Write(data)
		if err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	rows := make([]byte, 64<<10)
	if err := errors.Join(archive.Close(), os.Mkdir(folder+".others", 0o700),
		os.WriteFile(folder+".others/shard.tar", shard.Bytes(), 0o600), os.WriteFile(folder+".others/rows", rows, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]source.Settings{
		"folder": {"kind": "dir", "path": folder},
		"tar":    {"kind": "tar", "path": folder + ".others/shard.tar"},
		"raw":    {"kind": "raw", "path": folder + ".others/rows", "sample_bytes": 1024},
	} {
		for _, policy := range []shm.Policy{shm.PolicyFirstCome, shm.PolicyCost} {
			bytesOf := func(size uint64) uint64 {
				p, err := served.Prepare(t.Context(), served.Options{Name: "pets", Source: from, Size: size, Policy: policy}, kinds.Open,
					wrap.NewFailures(slog.New(slog.DiscardHandler)))
				fatal.If(t, err)
				defer served.CloseAll(slog.New(slog.DiscardHandler), p)
				return p.Bytes
			}
			all := bytesOf(0)
			for _, size := range []uint64{all, all + 4096, 1 << 40} {
				expect.Equal(t, bytesOf(size), all, "%s, policy %v, size %d: the segment", name, policy, size)
			}
			if less := bytesOf(all - 10_000); less > all-10_000 {
				t.Errorf("%s, policy %v: a segment of %d bytes for a size of %d", name, policy, less, all-10_000)
			}
		}
	}
}
