package order

const (
	version = 1  // version of dealing
	probes  = 64 // indices that stand for an order in a digest
)

// Digest is what docs/spec/order.md says: it differs, except by chance, if one setting of the order, the nodes or the
// batches does. C computes it for programs, and the tests of both languages compare it.
func (d *Dealer) Digest() uint64 {
	e, o := d.epoch, d.owners
	words := []uint64{version, e.number, e.positions}
	for k := range uint64(probes) {
		// k * positions / probes, which needs at most 64 bits: positions has 40
		words = append(words, e.At(k*e.positions/probes))
	}
	words = append(words, d.from, d.batch, uint64(d.ends), uint64(len(o.nodes)))
	for _, n := range o.nodes {
		words = append(words, n.Ranks)
	}
	for _, owner := range o.owner {
		if owner < 0 {
			owner = int32(len(o.nodes))
		}
		words = append(words, uint64(owner))
	}
	return chain(o.samples, words...)
}

// Quota returns how many of the Buckets a node owns.
func (o *Owners) Quota(node int) int { return o.quota[node] }
