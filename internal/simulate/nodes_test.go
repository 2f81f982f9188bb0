package simulate

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

func nodes(count int, affinity bool, part float64) Nodes {
	const samples = 100_000
	return Nodes{Order: order.Order{Samples: samples, Kind: order.Shuffled, Seed: 1}, Epochs: 4, Nodes: count, Batch: 256,
		Affinity: affinity, Room: uint64(part * samples)}
}

func runNodes(t *testing.T, n Nodes, name string, tier uint64) []Epoch {
	t.Helper()
	trace := fatal.Value(n.Trace())(t)
	epochs := run(t, trace, name, n.Room, Options{Batch: n.Batch, Ahead: 2, Tier: tier})
	for k, e := range epochs {
		ahead := e.Tier + e.Source + e.Hits - e.Reads // samples that servers read ahead
		if ahead > 0 && (k > 0 || !n.Affinity) || e.Reads > n.Order.Samples || e.Reads < n.Order.Samples-uint64(n.Batch*n.Nodes) {
			t.Fatalf("epoch %d: %+v", k+1, e)
		}
	}
	return epochs
}

// Ensure the figures that are known: without affinity a node's cache hits as much as it holds, with it
// nearly always, if the nodes together hold everything.
func TestNodesHits(t *testing.T) {
	for _, count := range []int{3, 8} {
		part := 1 / float64(count)
		plain, dealt := runNodes(t, nodes(count, false, part), "first-come", 0)[3], runNodes(t, nodes(count, true, part), "first-come", 0)[3]
		if math.Abs(plain.HitRate()-part) > 0.01 || dealt.HitRate() < 0.96 || dealt.Least < 0.95 {
			t.Errorf("%d nodes: %.3f, with affinity %.3f, at least %.3f", count, plain.HitRate(), dealt.HitRate(), dealt.Least)
		}
		if i := float64(dealt.Link) * float64(count) / float64(dealt.Source); i < 1 || i > 1.3 {
			t.Errorf("%d nodes: the link of one has %.2f times the mean", count, i)
		}
	}
	// nodes that together hold half: half of the reads
	if e := runNodes(t, nodes(4, true, 0.125), "first-come", 0)[3]; math.Abs(e.HitRate()-0.5) > 0.02 {
		t.Errorf("nodes that hold half of the dataset: %.3f", e.HitRate())
	}
}

// Ensure that a sample comes from the source once while the tier holds it.
func TestNodesTier(t *testing.T) {
	n, source := nodes(3, true, 1.0/3), uint64(0)
	for k, e := range runNodes(t, n, "first-come", n.Order.Samples) {
		if source += e.Source; k > 0 && e.Source > 768 { // what epoch 1 left out
			t.Errorf("epoch %d: %d samples of the source", k+1, e.Source)
		}
	}
	if source > n.Order.Samples {
		t.Errorf("%d reads of the source for %d samples", source, n.Order.Samples)
	}
}

// Ensure that all policies run: reads of a shuffled order are alike to them.
func TestNodesPolicies(t *testing.T) {
	for _, name := range policy.Names() {
		if name == "planned" {
			continue
		}
		if e := runNodes(t, nodes(3, true, 0.25), name, 0)[3]; e.HitRate() > 0.78 || name == "first-come" && e.HitRate() < 0.72 {
			t.Errorf("%s: %.3f", name, e.HitRate())
		}
	}
}

// Ensure that the names of nodes decide who owns what. In a small dataset, nodes with caches of a third own more or
// fewer samples than fit. The servers of the demo read in the first epoch what they own and others read, so that the
// second epoch hit 0.945 (bench/results/2026-11-25-demo-cluster.md).
func TestNodesNames(t *testing.T) {
	n := Nodes{Order: order.Order{Kind: order.Shuffled, Samples: 14208}, Epochs: 2, Nodes: 3, Batch: 64, Affinity: true, Room: 4736}
	usual := runNodes(t, n, "first-come", 0)[1].HitRate()
	n.Names = []string{"host0", "host1", "host2"}
	epochs := runNodes(t, n, "first-come", 0)
	ahead := float64(epochs[0].Source-epochs[0].Reads) / 14208
	if got := epochs[1].HitRate(); math.Abs(got-0.945) > 0.002 || usual < 0.955 || ahead < 0.03 || ahead > 0.06 {
		t.Errorf("%.4f local hits, %.4f with other names; %.3f read ahead", got, usual, ahead)
	}
	if e := runNodes(t, n, "first-come", 14208)[0]; e.Tier == 0 || e.Source != e.Reads { // the reader's load is in the tier
		t.Errorf("with a tier: %+v", e)
	}
}

func TestBadNodes(t *testing.T) {
	for want, change := range map[string]func(n *Nodes){
		"0 nodes":                    func(n *Nodes) { n.Nodes = 0 },
		"with 0 samples each":        func(n *Nodes) { n.Batch = 0 },
		"together at most the 10000": func(n *Nodes) { n.Batch = 50_000 },
		"0 epochs":                   func(n *Nodes) { n.Epochs = 0 },
		"3 nodes and 2 names":        func(n *Nodes) { n.Names = []string{"a", "b"} },
		"have the same name":         func(n *Nodes) { n.Names = []string{"a", "b", "a"} },
		"need too much memory":       func(n *Nodes) { n.Nodes, n.Order.Samples = 900, 1e6 },
		"0 samples are not in":       func(n *Nodes) { n.Order.Samples = 0 },
	} {
		n := nodes(3, true, 0.5)
		change(&n)
		if _, err := n.Trace(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}
