package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that a server which was killed reads from its disk what its segment has no room for: each sample is
// read from the source once.
func TestDiskTierSurvivesRestarts(t *testing.T) {
	const n = 600
	dir := t.TempDir()
	records := filepath.Join(dir, "records")
	s := configureServed(t, fmt.Sprintf("size: 4500kB, parallel: 8, tiers: [{kind: disk, dir: %q, size: 64MiB}], "+
		"source: {kind: raw, path: %q, sample_bytes: %d}", dir, records, servedBytes))
	s.records = records
	s.write(n)
	disk := func(name string) float64 {
		return s.metric("stocached_tier_"+name, `cache="pets",kind="disk",tier="0"`)
	}
	reads := func() float64 { return s.metric("stocached_source_reads_total", `cache="pets"`) }
	s.start()
	s.reaches()
	wantFetch(t, s.dial(), first(n))
	s.written("disk")
	if got := reads(); got != n || disk("writes_total") != n {
		t.Fatalf("%v reads of the source, %v writes to the disk, for %d samples", got, disk("writes_total"), n)
	}
	s.kill()
	s.start()
	s.reaches()
	wantFetch(t, s.dial(), rand.Perm(n))
	if disk("hits_total") == 0 || disk("poisoned_total") != 0 || reads() != 0 {
		t.Errorf("%v hits of the disk, %v poisoned, %v reads of the source", disk("hits_total"), disk("poisoned_total"), reads())
	}
	out, err := program("stats", s.segments+"/pets", "--all", "--sockets", s.sockets).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "disk: hits ") {
		t.Errorf("%v\n%s", err, out)
	}
	if said, changes := s.doctor(); changes != 0 || !strings.Contains(said, "iB free for this file") {
		t.Errorf("%d changes\n%s", changes, said)
	}

	// Bytes that change on the disk are never served, and a disk that is gone costs no sample.
	file := filepath.Join(dir, "pets.tier")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for at := 3 << 20; at < len(raw); at += servedBytes {
		raw[at] ^= 1
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	wantFetch(t, s.dial(), rand.Perm(n))
	if disk("poisoned_total") == 0 || reads() == 0 {
		t.Errorf("%v poisoned, %v reads of the source", disk("poisoned_total"), reads())
	}
	s.kill()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.reaches()
	wantFetch(t, s.dial(), rand.Perm(n))
}
