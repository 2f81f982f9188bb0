package kinds_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
)

// noise returns samples of 110 KiB, as usual pictures have.
func noise(n int) (all [][]byte) {
	x := uint64(1)
	for range n {
		b := make([]byte, 110<<10)
		for k := range b {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			b[k] = byte(x >> 32)
		}
		all = append(all, b)
	}
	return all
}

// shardOf makes a tar file of samples with two fields: the data, and a label.
func shardOf(t *testing.T, samples [][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, sample := range samples {
		for k, data := range [][]byte{sample, fmt.Appendf(nil, "%d", i)} {
			name := fmt.Sprintf("%06d.%s", i, []string{"jpg", "cls"}[k])
			if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(data); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Close()
	return b.Bytes()
}

// Ensure, counted at the server, that a sample costs one request, and at most 1.02 of its bytes, in any order.
// The fields of a sample in a shard are read together. The index of the shard costs its bytes once, and nothing
// the next time.
func TestBytesOfASample(t *testing.T) {
	s3test.Environment(t)
	samples := noise(60)
	folder := t.TempDir()
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{110 << 10}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	w, err := block.Create(t.Context(), folder+"/packed", block.Options{Schema: schema, BlockBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := s3test.Fake(t)
	for i, sample := range samples {
		s.Put(t, fmt.Sprintf("files/%03d.jpg", i), sample)
		if err := w.Write(sample); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	s.Put(t, "raw", bytes.Join(samples, nil))
	s.Put(t, "train.tar", shardOf(t, samples))
	packed, _ := filepath.Glob(folder + "/packed/*")
	for _, path := range packed {
		s.Put(t, "packed/"+filepath.Base(path), read(t, path))
	}
	total := int64(0)
	for _, sample := range samples {
		total += int64(len(sample))
	}
	for _, c := range []source.Settings{{"kind": "dir", "path": "files"}, {"kind": "raw", "path": "raw", "sample_bytes": 110 << 10},
		{"kind": "block", "path": "packed"}, {"kind": "tar", "path": "train.tar", "int64": []any{"cls"}}} {
		kind := c["kind"].(string)
		c["path"] = "s3://" + s3test.Bucket + "/" + c["path"].(string)
		c["remote"] = map[string]any{"endpoint": s.URL, "hedge": false} // a slow machine may get second requests
		for round := range 2 {
			before, opened := s.Bytes.Load(), int64(0)
			src, err := kinds.Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			s.Settle()
			if opened = s.Bytes.Load() - before; kind == "tar" && (round == 0) != (opened > total) || opened > total*11/10 {
				t.Errorf("%s: opened for the time %d, it read %d bytes of %d", kind, round+1, opened, total)
			}
			for _, i := range rand.Perm(len(samples)) {
				n, err := src.Size(i)
				if err != nil {
					t.Fatal(err)
				}
				s.Settle()
				requests, sent := s.Requests.Load(), s.Bytes.Load()
				got := make([]byte, n)
				if _, err := src.Read(t.Context(), i, got); err != nil || !bytes.Contains(got, samples[i]) {
					t.Fatalf("%s: sample %d: %v", kind, i, err)
				}
				s.Settle()
				if requests, sent = s.Requests.Load()-requests, s.Bytes.Load()-sent; requests != 1 || sent > int64(n)*102/100 {
					t.Errorf("%s: sample %d took %d requests and %d bytes for %d", kind, i, requests, sent, n)
				}
			}
			s.Settle()
			traffic := src.Info().Traffic
			if got, want := int64(traffic.Bytes.Load()), s.Bytes.Load()-before; got != want {
				t.Errorf("%s: the source counted %d bytes, the server %d", kind, got, want)
			}
		}
	}
}

// Ensure that samples of a shard that lie side by side are read by one request, as blocks are, with few bytes more,
// and that fields which lie far apart are not.
func TestNeighboursOfAShard(t *testing.T) {
	s3test.Environment(t)
	samples := noise(200) // 22 MB: three blocks of 8 MiB
	s := s3test.Fake(t)
	s.Put(t, "train.tar", shardOf(t, samples))
	open := func(fields ...any) source.Blocks {
		t.Helper()
		src, err := kinds.Open(t.Context(), source.Settings{"kind": "tar", "path": "s3://" + s3test.Bucket + "/train.tar",
			"fields": fields, "remote": map[string]any{"endpoint": s.URL, "hedge": false}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { src.Close() })
		return src.(source.Blocks)
	}
	src := open("jpg", "cls")
	if src.Blocks() != 3 {
		t.Errorf("%d blocks", src.Blocks())
	}
	next, requests, sent, bytesRead := 0, s.Requests.Load(), s.Bytes.Load(), int64(0)
	for b := range src.Blocks() {
		first, n := src.Block(b)
		if first != next || src.BlockOf(first) != b || src.BlockOf(first+n-1) != b {
			t.Errorf("block %d has %d samples from %d on, want %d", b, n, first, next)
		}
		err := src.ReadBlock(t.Context(), b, func(i int, sample []byte) error {
			if i != next {
				t.Errorf("sample %d, want %d", i, next)
			}
			next++
			bytesRead += int64(len(sample))
			alone := make([]byte, len(sample))
			if i%20 == 0 {
				before := s.Requests.Load()
				if _, err := src.Read(t.Context(), i, alone); err != nil || !bytes.Equal(alone, sample) || !bytes.Contains(sample, samples[i]) {
					t.Errorf("sample %d differs in its block: %v", i, err)
				}
				requests += s.Requests.Load() - before
				sent += int64(len(sample)) + 4096 // of that read
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Settle()
	if got := s.Requests.Load() - requests; next != len(samples) || got != 3 {
		t.Errorf("%d samples by %d requests", next, got)
	}
	if got := s.Bytes.Load() - sent; got > bytesRead*102/100 {
		t.Errorf("%d bytes were sent for %d", got, bytesRead)
	}
	if labels := open("cls"); labels.Blocks() != len(samples) {
		t.Errorf("%d blocks of %d labels that lie 110 KiB apart", labels.Blocks(), len(samples))
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
