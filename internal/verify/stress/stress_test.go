package stress

import (
	"encoding/hex"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestMain lets this binary also be a worker.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "work" {
		samples, _ := strconv.Atoi(os.Args[3])
		seconds, _ := strconv.Atoi(os.Args[4])
		seed, _ := strconv.ParseUint(os.Args[5], 10, 64)
		os.Exit(Work(os.Args[2], samples, time.Duration(seconds)*time.Second, seed))
	}
	os.Exit(m.Run())
}

// The test vector for workers in other languages.
func TestVector(t *testing.T) {
	p := make([]byte, 45)
	Fill(p, 5, 7, 1234)
	const want = "05000000000000000700000000000000d20400000000000000b77615df6feacff6bb854794aefff9898ee19516"
	if got := hex.EncodeToString(p); got != want {
		t.Errorf("payload %s, want %s", got, want)
	}
}

// A payload verifies. It does not verify with any byte changed, cut to any other length, or as
// another sample.
func TestVerify(t *testing.T) {
	p := make([]byte, 77)
	Fill(p, 3, 1, 99)
	if err := Verify(p, 3); err != nil {
		t.Fatal(err)
	}
	for k := range p {
		p[k] ^= 0x10
		if Verify(p, 3) == nil {
			t.Errorf("byte %d may be anything", k)
		}
		p[k] ^= 0x10
	}
	for n := range p {
		if Verify(p[:n], 3) == nil {
			t.Errorf("may be cut to %d bytes", n)
		}
	}
	if Verify(p, 4) == nil {
		t.Error("may be another sample's")
	}
}

// A short run of `make soak`. In a kind that evicts, each policy has its share of the kills, and evicts.
func TestDrive(t *testing.T) {
	workers := goWorkers(t, 4)
	for kind, policies := range map[Kind][]string{Slots: {"first-come"}, Arena: {"first-come"},
		Evicting: {"cost", "random", "clock", "fifo", "lru", "lfu", "planned"},
		Chains:   {"cost", "random", "clock", "fifo", "lru", "lfu", "planned"}} {
		d := Drive{Kills: 14, Lasts: 60 * time.Second, Seed: uint64(time.Now().UnixNano()), Kind: kind,
			Workers: workers}
		r, err := d.Run()
		t.Logf("%s, seed %d: %+v", kind, d.Seed, r)
		if err != nil {
			t.Error(err)
		}
		var driven []string
		for _, c := range r.Caches {
			driven = append(driven, c.Policy.String())
			if c.Kills < 14/len(policies) || c.Policy.Evicts() != (c.Evicted > 0) {
				t.Errorf("%s, %v", kind, c)
			}
		}
		if err == nil && !slices.Equal(driven, policies) {
			t.Errorf("%s: policies %v", kind, driven)
		}
	}
}

func goWorkers(t *testing.T, n int) []Worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	workers := make([]Worker, n)
	for k := range workers {
		workers[k] = Worker{Language: "Go", Command: []string{self, "work"}}
	}
	return workers
}
