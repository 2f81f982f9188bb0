package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/source/s3/s3test"
)

// packedBucket has 600 records in blocks, and the settings of a source that reads whole blocks.
func packedBucket(t *testing.T) (storage *s3test.Server, blocks int64, source string) {
	t.Helper()
	s3test.Environment(t)
	storage = s3test.Fake(t)
	records := &served{t: t, records: filepath.Join(t.TempDir(), "records")}
	records.write(600)
	out := filepath.Join(t.TempDir(), "packed")
	said := decode[jsonObject](t, ok(t, "pack", records.records, out, "--kind", "raw", "--source", fmt.Sprint("sample_bytes=", servedBytes),
		"--block-size", "64KiB", "--json"))
	for _, path := range files(t, out) {
		data := fatal.Value(os.ReadFile(filepath.Join(out, path)))(t)
		storage.Put(t, "packed/"+path, data)
	}
	return storage, int64(said["blocks"].(float64)), fmt.Sprintf("source: {kind: block, path: 's3://%s/packed', remote: {endpoint: %q, hedge: false}, "+
		"read_ahead: {size: 64MiB, blocks: true}}", s3test.Bucket, storage.URL)
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := fatal.Value(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// written waits until the tier has what it was given.
func (s *served) written(kind string) {
	s.t.Helper()
	fatal.Until(s.t, "the queue of writes is empty", func() bool {
		return s.metric("stocached_tier_queued_bytes", fmt.Sprintf(`cache="pets",kind=%q,tier="0"`, kind)) == 0
	})
}

// Ensure that a cold epoch reads whole blocks from the storage, and writes their samples to a disk, and that nothing is
// read ahead later which the disk has. It reads each block once. Only the readers that all see the last free slot read
// their samples for nothing, and later once more.
func TestBlocksBesideADisk(t *testing.T) {
	const parallel = 8
	storage, blocks, source := packedBucket(t)
	s := configureServed(t, fmt.Sprintf("size: 4500kB, parallel: %d, tiers: [{kind: disk, dir: %q, size: 64MiB}], %s", parallel, t.TempDir(), source))
	s.start()
	s.reaches()
	requests := func() int64 { storage.Settle(); return storage.Requests.Load() }
	before, c := requests(), s.dial()
	fatal.Value(c.Prefetch(context.Background(), first(600)))(t)
	for begin := 0; begin < 600; begin += 50 {
		wantFetch(t, c, between(begin, begin+50))
	}
	if got := requests() - before; got < blocks || got >= blocks+parallel || blocks < 20 {
		t.Errorf("%d requests for %d blocks", got, blocks)
	}
	s.written("disk")
	s.kill()
	s.start()
	s.reaches()
	before, c = requests(), s.dial()
	fatal.Value(c.Prefetch(context.Background(), first(600)))(t)
	wantFetch(t, c, rand.Perm(600))
	expect.Equal(t, requests()-before, 0, "requests for what the disk has")
	contains(t, ok(t, s.args("stats", s.segments+"/pets", "--all")...), "disk: hits ")
	if said, changes := s.doctor(); changes != 0 || !strings.Contains(said, "iB free for this file") {
		t.Errorf("%d changes\n%s", changes, said)
	}
}

// Ensure that servers which share a tier read each block at most once each, get every sample, and read nothing that
// the tier has, also when clients prefetch it.
func TestBlocksBesideACluster(t *testing.T) {
	storage, blocks, source := packedBucket(t)
	engine := redistest.Start(t)
	var all []*served
	for range 2 {
		all = append(all, configureServed(t, fmt.Sprintf("size: 4500kB, parallel: 8, tiers: [{kind: cluster, %s, timeout: 10s}], %s", on(engine), source)))
	}
	for _, s := range all {
		s.start()
		s.reaches()
	}
	requests := func() int64 { storage.Settle(); return storage.Requests.Load() }
	before := requests()
	var clients sync.WaitGroup
	for k, s := range all {
		c := s.dial()
		clients.Go(func() {
			for n := range 12 { // the two meet in the middle
				begin := []int{n, 11 - n}[k] * 50
				wantFetch(t, c, between(begin, begin+50))
			}
		})
	}
	clients.Wait()
	if got := requests() - before; got < blocks || got > 2*blocks {
		t.Errorf("%d requests for %d blocks and two servers", got, blocks)
	}
	for _, s := range all {
		s.written("cluster")
	}
	before = requests()
	for _, s := range all {
		c := s.dial()
		fatal.Value(c.Prefetch(context.Background(), first(600)))(t)
		wantFetch(t, c, rand.Perm(600))
	}
	expect.Equal(t, requests()-before, 0, "requests for what the tier has")
}
