package policy_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/policy"
)

// evicting returns the policies that evict.
func evicting() (kinds []policy.Kind) {
	for _, name := range policy.Names() {
		if k, err := policy.Parse(name); err == nil && k.Evicts() {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// forAll runs a test for each policy that evicts.
func forAll(t *testing.T, test func(t *testing.T, kind policy.Kind)) {
	if len(evicting()) < 6 {
		t.Fatal(evicting())
	}
	for _, kind := range evicting() {
		t.Run(kind.String(), func(t *testing.T) { test(t, kind) })
	}
}

func TestNames(t *testing.T) {
	want := []string{"first-come", "first-indices", "cost", "random", "clock", "fifo", "lru", "lfu", "planned"}
	expect.Slice(t, policy.Names(), want, "")
	for _, name := range want {
		k, err := policy.Parse(name)
		if err != nil || k.String() != name || k.New(3, 0).Rule() != nil != k.Evicts() {
			t.Error(name, k, err)
		}
	}
	for _, name := range []string{"", "none", "LRU", "lru ", "plan"} {
		if k, err := policy.Parse(name); !errors.Is(err, policy.ErrUnknown) || k != policy.None ||
			!strings.Contains(err.Error(), "first-come, first-indices, cost") {
			t.Error(name, k, err)
		}
	}
	if s := policy.Kind(99).String(); s != "policy 99" || policy.Kind(99).Evicts() || policy.Kind(99).NeedsCosts() ||
		policy.Kind(99).NeedsHits() {
		t.Error(s)
	}
}

// Ensure that all slots are used before a sample goes, and that a policy that evicts admits any
// sample.
func TestFillsFirst(t *testing.T) {
	forAll(t, func(t *testing.T, kind policy.Kind) {
		if verdict, _ := kind.New(2, 0).Admit(1 << 39); verdict != policy.Any {
			t.Error(verdict)
		}
		if verdict, _ := kind.New(0, 0).Admit(0); verdict != policy.Never {
			t.Error(verdict)
		}
		expect.Slice(t, run(kind.New(3, 0), 3, []uint64{7, 8, 9}), []int{0, 1, 2}, "")
	})
}

// Ensure that no search looks outside the slots, takes more looks than it may, or makes the new
// sample go, for any number of slots.
func TestStaysInside(t *testing.T) {
	forAll(t, func(t *testing.T, kind policy.Kind) {
		for _, slots := range []uint64{1, 2, 3, 64, 1 << 40} {
			rule := kind.New(slots, 5).Rule()
			for _, number := range []uint64{0, 1, 1 << 20, 1<<64 - 1} {
				if at := rule.Slot(number, slots); at >= slots {
					t.Fatalf("slot %d of %d", at, slots)
				}
				s := policy.NewSearch(rule, policy.Candidate{Sample: 9, Size: 1, Cost: 255, Next: 1}, 0, slots, nil)
				looks := 0
				for ; !s.Done(); looks++ {
					at := s.Slot(number)
					s.Look(number, at, policy.Candidate{Sample: 9, Size: 1, Cost: 2, Next: 7, Reference: uint8(looks)})
					number++
				}
				if looks > rule.Looks() || looks == 0 {
					t.Errorf("%d looks", looks)
				}
				if victim, _, ok := s.Victim(); ok {
					t.Errorf("the new sample goes itself: %+v", victim)
				}
			}
		}
		s := policy.NewSearch(kind.New(0, 0).Rule(), policy.Candidate{}, 0, 0, nil)
		if _, _, ok := s.Victim(); ok || !s.Done() {
			t.Error("a search in a cache without slots")
		}
		s = policy.NewSearch(kind.New(4, 0).Rule(), policy.Candidate{Cost: 255}, 0, 4, nil)
		for !s.Done() {
			s.Skip() // all slots are in use
		}
		if _, _, ok := s.Victim(); ok {
			t.Error("a sample goes that was not looked at")
		}
	})
}

// trace returns reads of random samples with random costs.
func trace(seed uint64, reads int, samples uint64) (out [][2]uint64) {
	for k := range uint64(reads) {
		sample := policy.Random(seed, 2*k) % samples
		if policy.Random(seed, 2*k+1)%2 == 0 {
			sample %= samples/4 + 1 // some are read often
		}
		out = append(out, [2]uint64{sample, 1e6 * (1 + policy.Random(99, sample)%50)})
	}
	return out
}

// Ensure that a cache with one slot works: all but cost and planned give it to each new sample.
func TestOneSlot(t *testing.T) {
	forAll(t, func(t *testing.T, kind policy.Kind) {
		c := simulate.NewCache(kind, 10, 1, 3)
		c.Read(7, 1e6)
		c.Read(7, 1e6)
		want := [2]int{8, 9}
		switch kind {
		case policy.KindCost:
			want[1] = 8
		case policy.KindPlanned: // no plan is known
			want = [2]int{7, 7}
		}
		for k, ns := range []uint64{3e6, 1e6} {
			if c.Read(uint32(8+k), ns); c.Slot(want[k]) != 0 {
				t.Errorf("sample %d is not there", want[k])
			}
		}
	})
}

// Ensure that reference bytes stay in range, settle under hits without sets, and that policies that
// need no hits leave the byte alone.
func TestReferences(t *testing.T) {
	forAll(t, func(t *testing.T, kind policy.Kind) {
		rule, hits := kind.New(100, 1).Rule(), kind.Hits(100)
		for b := range 256 {
			reference := uint8(b)
			hit, looked := hits.After(reference, 7, 1000), rule.Looked(reference, 7)
			if !kind.NeedsHits() && (hit != reference || looked != reference) {
				t.Errorf("%d: %d after a hit, %d after a look", b, hit, looked)
			}
			if kind != policy.KindLRU && (hit < reference || looked > reference) { // lru keeps a time there
				t.Errorf("%d: %d after a hit, %d after a look", b, hit, looked)
			}
		}
		reference, writes := rule.Placed(0), 0
		for sample := range uint64(1_000_000) { // no set moves the hand
			if next := hits.After(reference, sample, 0); next != reference {
				reference = next
				writes++
			}
		}
		if most := map[bool]int{false: 0, true: 254}[kind.NeedsHits()]; writes > most {
			t.Errorf("a million hits write %d times", writes)
		}
	})
}

var update = flag.Bool("update", false, "write testdata")

// The decisions of all policies, for C and for docs/spec/policies.md in Python.
func TestVectors(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Decisions of each policy: docs/spec/policies.md.\n" +
		"# go test ./policy -run Vectors -update makes this file.\n" +
		"# generator seed n value\n" +
		"# Reads of a cache with 16 slots and seed 42. Sample s has 100 + 7919*s mod 900 bytes.\n" +
		"# Its next read is (37*s + reads so far) mod 50 reads away; 0: unknown; 49:\n" +
		"# no job reads it again.\n" +
		"# name sample ns slot victim hit cost spread hand reference: those of the sample after the read; -1: none\n")
	for k := range uint64(5) {
		fmt.Fprintf(&b, "generator 42 %d %d\n", k, policy.Random(42, k))
	}
	for _, kind := range evicting() {
		c := simulate.NewCache(kind, 60, 16, 42)
		reads := 0
		c.Size = func(sample uint32) uint64 { return 100 + 7919*uint64(sample)%900 }
		c.Next = func(sample uint32) uint64 {
			if n := (37*uint64(sample) + uint64(reads)) % 50; n < 49 {
				return n
			}
			return policy.Unread
		}
		holder, costs, spread, loads := map[int]int{}, map[uint64]policy.Cost{}, policy.Spread(0), uint64(0)
		for k, r := range trace(7, 600, 60) {
			ns := r[1] + policy.Random(r[0], uint64(k))%5e6
			switch k % 50 {
			case 17:
				ns *= 100 // a stall
			case 18:
				ns /= 1e5 // below the range
			}
			reads++
			hit := c.Read(uint32(r[0]), ns)
			slot, victim, reference := c.Slot(int(r[0])), -1, 0
			if !hit { // costs of all policies stand in the file, and only some count them
				loads++
				costs[r[0]], spread = costs[r[0]].Loaded(ns, spread, policy.Random(42, loads))
			}
			if kind.NeedsCosts() && (c.Costs[r[0]] != costs[r[0]] || c.Spread != spread) {
				t.Fatalf("read %d of sample %d: cost %d, spread %d", k, r[0], c.Costs[r[0]], c.Spread)
			}
			if slot >= 0 {
				reference = int(c.Reference(slot))
				if held, is := holder[slot]; is && !hit {
					victim = held
				}
				holder[slot] = int(r[0])
			}
			fmt.Fprintln(&b, kind, r[0], ns, slot, victim, hit, uint8(costs[r[0]]), uint64(spread), c.Hand, reference)
		}
	}
	const file = "testdata/policies.txt"
	if *update {
		fatal.If(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want := fatal.Value(os.ReadFile(file))(t)
	expect.Equal(t, b.String(), string(want), "decisions of %v", file)
}
