package order_test

import (
	"math"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
)

// Ensure that dealing gives nodes as many of their own samples as a global batch allows. A node of n owns about
// b of the n*b samples, give or take sqrt(b). What it owns beyond b goes to others: sqrt((1 - 1/n) / (2 pi b)) of
// all reads. No other way to deal this batch gives more reads of owned samples.
func TestShareOfOwnedReads(t *testing.T) {
	for _, c := range []struct{ nodes, batch uint64 }{{2, 64}, {3, 64}, {8, 64}, {64, 64}, {256, 64}, {8, 256}, {64, 256}} {
		nodes := make([]order.Node, c.nodes)
		for i := range nodes {
			nodes[i].Ranks = 1
		}
		const samples = 50_000_000
		owners := fatal.Value(order.NewOwners(nodes, samples))(t)
		epoch := fatal.Value(order.Order{Samples: samples, Kind: order.Shuffled, Seed: 5}.Epoch(0))(t)
		d := fatal.Value(epoch.Dealer(owners, c.batch, 0, order.Drop))(t)
		owned, most, reads := 0, 0, 0
		for batch := uint64(0); reads < 1_000_000; batch++ {
			of := make([]int, c.nodes)
			for node, indices := range d.Deal(batch) {
				for _, index := range indices {
					owner := owners.Owner(uint64(index))
					if of[owner]++; owner == node {
						owned++
					}
				}
				reads += len(indices)
			}
			for _, n := range of {
				most += min(n, int(c.batch))
			}
		}
		share := float64(owned) / float64(reads)
		limit := 1 - math.Sqrt((1-1/float64(c.nodes))/(2*math.Pi*float64(c.batch)))
		t.Logf("%d nodes, %d a node: %.4f of the reads are owned; the limit is %.4f", c.nodes, c.batch, share, limit)
		if owned != most || math.Abs(share-limit) > 0.002 {
			t.Errorf("%d nodes, %d a node: %d owned reads of %d, %.4f; %d are possible; expected %.4f", c.nodes, c.batch, owned,
				reads, share, most, limit)
		}
	}
}
