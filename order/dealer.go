package order

import "fmt"

// Dealer deals each global batch of an epoch to the nodes of a job. A sample goes to the node that owns
// it. A node that owns too many gives the rest to nodes that lack some. So each rank has its exact batch
// size, and each global batch has the samples of the plain order. It is safe for concurrent use.
type Dealer struct {
	epoch  *Epoch
	owners *Owners
	from   uint64
	batch  uint64 // samples of a rank in a batch
	ranks  uint64
	each   uint64 // samples of a rank from `from` on
	ends   Ends
}

// Dealer returns the dealer of batches of this size, from a position on. It returns ErrInvalid, also
// for Uneven: all ranks of a global batch have the same number of samples.
func (e *Epoch) Dealer(owners *Owners, batch, from uint64, ends Ends) (*Dealer, error) {
	d := &Dealer{epoch: e, owners: owners, from: from, batch: batch, ends: ends, ranks: owners.Ranks()}
	switch {
	case batch < 1 || batch > MaxSamples/d.ranks:
		return nil, fmt.Errorf("%w: batches of %d samples for each of %d ranks; give at least 1, and at most %d in all",
			ErrInvalid, batch, d.ranks, uint64(MaxSamples))
	case from > e.positions:
		return nil, fmt.Errorf("%w: the batches begin at position %d of %d", ErrInvalid, from, e.positions)
	case ends != Pad && ends != Drop:
		return nil, fmt.Errorf("%w: ends %d with nodes; all ranks need batches of one size, so give Pad or Drop",
			ErrInvalid, ends)
	}
	left := e.positions - from
	if d.each = left / d.ranks; ends == Pad {
		d.each = (left + d.ranks - 1) / d.ranks
	}
	return d, nil
}

// Samples returns the number of samples of each rank, repeated ones included.
func (d *Dealer) Samples() uint64 { return d.each }

// Batches returns the number of global batches. The last one may have fewer samples.
func (d *Dealer) Batches() uint64 { return (d.each + d.batch - 1) / d.batch }

// Deal returns the indices of the samples of each node in a global batch, in the order of their
// positions. Rank r of a node, counted from its first rank, reads those at r, r + Ranks, r +
// 2*Ranks, ... It panics for a batch that is not below Batches.
func (d *Dealer) Deal(batch uint64) [][]int {
	dealt, _ := d.deal(batch)
	return dealt
}

// Fill writes the samples of one rank of the job in a global batch to dst, which has room for them. It
// returns their number, and how many of the first ones no Pad repeats. It panics as Deal.
func (d *Dealer) Fill(dst []int, batch, rank uint64) (n, real int) {
	dealt, before := d.deal(batch)
	node, ranks := 0, d.owners.nodes
	for ; rank >= ranks[node].Ranks; node++ {
		rank -= ranks[node].Ranks
	}
	for k := rank; k < uint64(len(dealt[node])); k += ranks[node].Ranks {
		dst[n] = dealt[node][k]
		n++
		if k < uint64(before[node]) {
			real = n
		}
	}
	return n, real
}

// Elsewhere returns the part of a rank of the samples in a global batch that its node owns and other nodes
// read. It panics as Deal.
func (d *Dealer) Elsewhere(batch, rank uint64) (indices []int) {
	own, first := d.owners.NodeOf(rank), uint64(0)
	for _, n := range d.owners.nodes[:own] {
		first += n.Ranks
	}
	k := uint64(0) // batches that the ranks of the node share
	for node, read := range d.Deal(batch) {
		for _, index := range read {
			if node == own || d.owners.Owner(uint64(index)) != own {
				continue
			}
			if k%d.owners.nodes[own].Ranks == rank-first {
				indices = append(indices, index)
			}
			k++
		}
	}
	return indices
}

// deal returns the samples of each node, and how many of them come before the end of the epoch.
func (d *Dealer) deal(batch uint64) (dealt [][]int, before []int) {
	if batch >= d.Batches() {
		panic(fmt.Sprintf("order: batch %d is not in 0..%d", batch, int64(d.Batches())-1))
	}
	size := min(d.batch, d.each-batch*d.batch) // samples of a rank
	indices := make([]int, size*d.ranks)
	first := d.from + batch*d.batch*d.ranks
	end := d.epoch.Fill(indices, first, 1)
	for k := end; k < len(indices); k++ { // Pad begins the epoch again
		indices[k] = int(d.epoch.At((first + uint64(k)) % d.epoch.positions))
	}
	nodes := d.owners.nodes
	before, lacks := make([]int, len(nodes)), make([]uint64, len(nodes))
	dealt = make([][]int, len(nodes))
	for i, n := range nodes {
		lacks[i] = size * n.Ranks
		dealt[i] = make([]int, 0, lacks[i])
	}
	reader, surplus := make([]int32, len(indices)), []int(nil)
	for k, index := range indices {
		if i := d.owners.Owner(uint64(index)); i >= 0 && lacks[i] > 0 {
			reader[k] = int32(i)
			lacks[i]--
		} else {
			surplus = append(surplus, k)
		}
	}
	for i, lack := range lacks {
		for _, k := range surplus[:lack] {
			reader[k] = int32(i)
		}
		surplus = surplus[lack:]
	}
	for k, i := range reader {
		dealt[i] = append(dealt[i], indices[k])
		if k < end {
			before[i]++
		}
	}
	return dealt, before
}
