package simulate

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

func cluster(nodes int, affinity bool, part float64) Cluster {
	const samples = 100_000
	return Cluster{Order: order.Order{Samples: samples, Kind: order.Shuffled, Seed: 1}, Epochs: 4, Nodes: nodes, Batch: 256,
		Affinity: affinity, Policy: "first-come", Room: uint64(part * samples)}
}

func runCluster(t *testing.T, c Cluster) []ClusterEpoch {
	t.Helper()
	epochs, err := c.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, e := range epochs {
		if e.Hits+e.Tier+e.Source != e.Reads || e.Reads > c.Order.Samples || e.Reads < c.Order.Samples-c.Batch*uint64(c.Nodes) {
			t.Fatalf("epoch %d: %+v", k+1, e)
		}
	}
	return epochs
}

// Ensure the figures that are known: without affinity a node's cache hits as much as it holds, with it
// nearly always, if the nodes together hold everything.
func TestClusterHits(t *testing.T) {
	for _, nodes := range []int{3, 8} {
		part := 1 / float64(nodes)
		plain, dealt := runCluster(t, cluster(nodes, false, part))[3], runCluster(t, cluster(nodes, true, part))[3]
		if math.Abs(plain.HitRate()-part) > 0.01 || dealt.HitRate() < 0.96 || dealt.LeastHits < 0.95 {
			t.Errorf("%d nodes: %.3f, with affinity %.3f, at least %.3f", nodes, plain.HitRate(), dealt.HitRate(), dealt.LeastHits)
		}
		if i := dealt.Imbalance(); i < 1 || i > 1.3 {
			t.Errorf("%d nodes: imbalance %.2f", nodes, i)
		}
	}
	// nodes that together hold half: half of the reads
	if e := runCluster(t, cluster(4, true, 0.125))[3]; math.Abs(e.HitRate()-0.5) > 0.02 {
		t.Errorf("nodes that hold half of the dataset: %.3f", e.HitRate())
	}
}

// Ensure that a sample comes from the source once while the tier holds it, and that the nodes which are left
// read what a lost node had.
func TestClusterTierAndLoss(t *testing.T) {
	c := cluster(3, true, 1.0/3)
	c.Tier = c.Order.Samples
	source := uint64(0)
	for k, e := range runCluster(t, c) {
		if source += e.Source; k > 0 && e.Source > 768 { // what epoch 1 left out
			t.Errorf("epoch %d: %d samples of the source", k+1, e.Source)
		}
	}
	if source > c.Order.Samples {
		t.Errorf("%d reads of the source for %d samples", source, c.Order.Samples)
	}
	c.Tier, c.Room, c.Lose = 0, c.Order.Samples/2, 3
	epochs := runCluster(t, c)
	if epochs[1].HitRate() < 0.95 || epochs[2].Nodes != 2 || epochs[2].HitRate() > 0.85 || epochs[3].HitRate() < 0.95 {
		t.Errorf("hit rates %.3f, %.3f, %.3f", epochs[1].HitRate(), epochs[2].HitRate(), epochs[3].HitRate())
	}
}

// Ensure that all policies run: reads of a shuffled order are alike to them.
func TestClusterPolicies(t *testing.T) {
	for kind := policy.KindFirstCome; kind <= policy.KindPlanned; kind++ {
		c := cluster(3, true, 0.25)
		c.Policy = kind.String()
		if kind.NeedsPlans() {
			if err := c.Check(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", kind, err)
			}
			continue
		}
		e := runCluster(t, c)[3]
		t.Logf("%s: %.3f", kind, e.HitRate())
		if e.HitRate() > 0.78 || kind == policy.KindFirstCome && e.HitRate() < 0.72 {
			t.Errorf("%s: %.3f", kind, e.HitRate())
		}
	}
}

// Ensure that the names of nodes decide who owns what. In a small dataset, nodes with caches of a third own more or
// fewer samples than fit: `make demo-cluster` measured 0.942 to 0.946 with these names.
func TestClusterNames(t *testing.T) {
	c := Cluster{Order: order.Order{Kind: order.Shuffled, Samples: 14208, Seed: 7}, Epochs: 3, Nodes: 3, Batch: 64, Affinity: true,
		Policy: "first-come", Room: 4736}
	usual := runCluster(t, c)[2].HitRate()
	c.Names = []string{"host0", "host1", "host2"}
	if got := runCluster(t, c)[2].HitRate(); got < 0.941 || got > 0.947 || usual < 0.955 {
		t.Errorf("%.4f local hits, %.4f with other names", got, usual)
	}
}

func TestBadClusters(t *testing.T) {
	for want, change := range map[string]func(c *Cluster){
		"0 nodes are not in 1..1000":   func(c *Cluster) { c.Nodes = 0 },
		"1001 nodes":                   func(c *Cluster) { c.Nodes = 1001 },
		"with 0 samples each":          func(c *Cluster) { c.Batch = 0 },
		"together at most the 100000":  func(c *Cluster) { c.Batch = 50_000 },
		"0 epochs":                     func(c *Cluster) { c.Epochs = 0 },
		"lost at epoch 5, of 4 epochs": func(c *Cluster) { c.Lose = 5 },
		"at least 2 nodes":             func(c *Cluster) { c.Lose, c.Nodes = 1, 1 },
		"2 names for 3 nodes":          func(c *Cluster) { c.Names = []string{"a", "b"} },
		"best":                         func(c *Cluster) { c.Policy = "best" },
		"need too much memory":         func(c *Cluster) { c.Policy, c.Nodes, c.Order.Samples = "lru", 900, 1e6 },
		"0 samples are not in":         func(c *Cluster) { c.Order.Samples = 0 },
	} {
		c := cluster(3, true, 0.5)
		change(&c)
		if _, err := c.Run(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

// The demo's hosts own more and less than their caches hold. Their servers read in the first epoch what they own and
// others read, so that the second epoch hit 0.945 (bench/results/2026-11-25-demo-cluster.md). Without servers it hits less.
func TestClusterServers(t *testing.T) {
	c := Cluster{Order: order.Order{Samples: 14208, Kind: order.Shuffled}, Epochs: 2, Nodes: 3, Names: []string{"host0", "host1", "host2"},
		Batch: 64, Affinity: true, Policy: "first-come", Room: 4736, Servers: true}
	epochs := runCluster(t, c)
	first := float64(epochs[0].AheadSource) / 14208
	if e := epochs[1]; math.Abs(e.HitRate()-0.945) > 0.002 || e.AheadSource != 0 || first < 0.03 || first > 0.06 || epochs[0].AheadTier != 0 {
		t.Errorf("%+v", epochs)
	}
	c.Tier = 14208
	if e := runCluster(t, c)[0]; e.AheadSource != 0 || e.AheadTier == 0 { // the reader's load is in the tier
		t.Errorf("with a tier: %+v", e)
	}
	c.Room /= 2 // no node has room for half of the samples
	if e := runCluster(t, c)[1]; math.Abs(e.HitRate()-0.5) > 0.05 {
		t.Errorf("half: %+v", e)
	}
	c.Tier, c.Room, c.Servers = 0, 4736, false
	if e := runCluster(t, c); e[1].HitRate() > 0.93 || e[0].AheadSource != 0 {
		t.Errorf("without servers: %+v", e)
	}
}

// Nodes whose caches hold all and half of the dataset hit all but the surplus of each global batch.
func TestClusterOfUnequalNodes(t *testing.T) {
	c := cluster(2, true, 0)
	c.Rooms = []uint64{c.Order.Samples, c.Order.Samples / 2}
	if e := runCluster(t, c)[3]; e.HitRate() < 0.97 || e.LeastHits < 0.96 {
		t.Errorf("%+v", e)
	}
	c.Rooms[0] /= 4 // together three quarters
	if e := runCluster(t, c)[3]; math.Abs(e.HitRate()-0.75) > 0.03 {
		t.Errorf("%+v", e)
	}
	c.Rooms = c.Rooms[:1]
	if err := c.Check(); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}
