package simulate

import (
	"fmt"
	"math"
	"time"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// Cluster is one job whose ranks run on several nodes, each with a cache of its own. It runs the code of
// loaders: the order, the owners, the dealing of global batches, and the policies.
type Cluster struct {
	Order    order.Order
	Epochs   int
	Nodes    int
	Names    []string // of the nodes, which decide who owns what; nil: node-0, node-1, ...
	Batch    uint64   // samples of each node in a global batch
	Affinity bool     // global batches are dealt to the nodes that own their samples
	Policy   string   // of the caches of nodes
	Room     uint64   // samples that the cache of each node holds
	Rooms    []uint64 // of each node, if they differ; nil: all have Room
	// Servers have the caches: with affinity, they also read in the first epoch what their nodes own and others read.
	Servers bool
	Tier    uint64 // samples that the cluster tier holds; it keeps the first ones
	Lose    int    // the epoch, from 1 on, at whose start the last node goes for good; 0: none
	Seed    uint64 // of the policies
}

// ClusterEpoch is what the nodes did in one epoch. What nodes have not in their caches comes from the
// cluster tier, if that has it, else from the source. Nodes never load a sample at the same time.
type ClusterEpoch struct {
	Nodes        int
	Reads, Hits  uint64 // of all nodes, and from their own caches
	Tier, Source uint64 // of the others
	// Ahead are further reads of servers, in the first epoch: of what their nodes own and others read.
	AheadTier, AheadSource uint64
	LeastHits              float64       // hit rate of the node that has the lowest
	MostRemote             uint64        // samples that one node read from tier and source, its server too: the most of all nodes
	Dealing                time.Duration // for one node, of all global batches
}

// HitRate returns the reads from nodes' own caches, of all reads.
func (e ClusterEpoch) HitRate() float64 { return float64(e.Hits) / float64(max(e.Reads, 1)) }

// Imbalance returns the remote reads of the node that has most, over the mean of all nodes; 1 if there
// are none.
func (e ClusterEpoch) Imbalance() float64 {
	remote := e.Reads - e.Hits + e.AheadTier + e.AheadSource
	if remote == 0 {
		return 1
	}
	return float64(e.MostRemote) * float64(e.Nodes) / float64(remote)
}

// MaxNodes is the most nodes of a Cluster.
const MaxNodes = 1000

// maxState bounds the memory of caches that are simulated, in samples of all nodes.
const maxState = 1 << 27

// Check returns an error for a cluster that cannot be simulated.
func (c Cluster) Check() error {
	if err := (Jobs{Order: c.Order, Epochs: c.Epochs, Jobs: 1}).Check(); err != nil {
		return err
	}
	if _, err := c.Order.Epoch(0); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	kind, err := policy.Parse(c.Policy)
	switch global := c.Batch * uint64(max(c.Nodes, 1)); {
	case err != nil:
		return fmt.Errorf("%w; nodes have the policies of caches", err)
	case kind.NeedsPlans():
		return fmt.Errorf("%w: the policy %s asks a server, which does not know nodes; simulate it without nodes", ErrInvalid, kind)
	case c.Nodes < 1 || c.Nodes > MaxNodes:
		return fmt.Errorf("%w: %d nodes are not in 1..%d", ErrInvalid, c.Nodes, MaxNodes)
	case c.Rooms != nil && len(c.Rooms) != c.Nodes:
		return fmt.Errorf("%w: %d sizes for %d nodes", ErrInvalid, len(c.Rooms), c.Nodes)
	case c.Names != nil && len(c.Names) != c.Nodes:
		return fmt.Errorf("%w: %d names for %d nodes", ErrInvalid, len(c.Names), c.Nodes)
	case c.Batch < 1 || c.Batch > math.MaxInt32 || global > c.Order.Samples:
		return fmt.Errorf("%w: %d nodes with %d samples each in a global batch; give at least 1, and together at most the "+
			"%d samples of the dataset", ErrInvalid, c.Nodes, c.Batch, c.Order.Samples)
	case c.Lose < 0 || c.Lose > c.Epochs || c.Lose > 0 && c.Nodes < 2:
		return fmt.Errorf("%w: a node is lost at epoch %d, of %d epochs and %d nodes; give one of these epochs, and at "+
			"least 2 nodes", ErrInvalid, c.Lose, c.Epochs, c.Nodes)
	case kind.Evicts() && c.Order.Samples*uint64(c.Nodes) > maxState:
		return fmt.Errorf("%w: %d samples on %d nodes with the policy %s need too much memory; simulate fewer samples, or "+
			"first-come", ErrInvalid, c.Order.Samples, c.Nodes, kind)
	}
	return nil
}

// nodeCache is the cache of one node.
type nodeCache struct {
	kept   *order.Kept  // nil: all samples
	there  []uint64     // bits, of a cache that evicts nothing
	room   uint64       // that is left
	policy *policyCache // of others
}

// read reads a sample, and says whether it was a hit.
func (n *nodeCache) read(sample, epoch int) bool {
	keeps := n.kept == nil || n.kept.Has(uint64(sample))
	if n.policy != nil {
		if !keeps && n.policy.slotOf[sample] < 0 {
			return false
		}
		return n.policy.access(uint32(sample), epoch)
	}
	word, bit := &n.there[sample/64], uint64(1)<<(sample%64)
	if *word&bit != 0 {
		return true
	}
	if keeps && n.room > 0 {
		*word |= bit
		n.room--
	}
	return false
}

// roomOf returns how many samples the cache of a node holds.
func (c *Cluster) roomOf(node int) uint64 {
	if c.Rooms != nil {
		return min(c.Rooms[node], c.Order.Samples)
	}
	return min(c.Room, c.Order.Samples)
}

func (c *Cluster) newCache(number int) *nodeCache {
	n := &nodeCache{room: c.roomOf(number)}
	kind, _ := policy.Parse(c.Policy) // Check has seen it
	if !kind.Evicts() {
		n.there = make([]uint64, (c.Order.Samples+63)/64)
		return n
	}
	o := &Options{Seed: c.Seed + uint64(number), Noise: 0.3}
	n.policy = newPolicyCache(&Trace{Samples: int(c.Order.Samples)}, o, kind, n.room)
	return n
}

// Run simulates all epochs. It calls progress after each global batch with the reads that are done, and
// ends with its error. It leaves out the last samples of an epoch, which make no whole global batch.
func (c Cluster) Run(progress func(reads int) error) ([]ClusterEpoch, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	caches := make([]*nodeCache, c.Nodes)
	for i := range caches {
		caches[i] = c.newCache(i)
	}
	tier := (&Cluster{Order: c.Order, Policy: policy.KindFirstCome.String(), Room: c.Tier}).newCache(0)
	owners, err := c.own(caches)
	if err != nil {
		return nil, err
	}
	epochs, done := make([]ClusterEpoch, c.Epochs), 0
	for number := range epochs {
		if number+1 == c.Lose {
			caches = caches[:len(caches)-1]
			if owners, err = c.own(caches); err != nil {
				return nil, err
			}
		}
		of, err := c.Order.Epoch(uint64(number))
		if err != nil {
			return nil, err
		}
		dealer, err := of.Dealer(owners, c.Batch, 0, order.Drop)
		if err != nil {
			return nil, err
		}
		e := &epochs[number]
		e.Nodes = len(caches)
		reads, hits, more := make([]uint64, len(caches)), make([]uint64, len(caches)), make([]uint64, len(caches))
		for g := range dealer.Samples() / c.Batch {
			began := time.Now()
			dealt := c.deal(of, dealer, g, len(caches))
			e.Dealing += time.Since(began)
			for i, mine := range dealt {
				for _, sample := range mine {
					reads[i]++
					if caches[i].read(sample, number) {
						hits[i]++
					} else if tier.read(sample, number) {
						e.Tier++
					} else {
						e.Source++
					}
				}
				done += len(mine)
			}
			if c.Servers && c.Affinity && number == 0 {
				e.readElsewhere(caches, tier, owners, dealt, more)
			}
			if progress != nil {
				if err := progress(done); err != nil {
					return nil, err
				}
			}
		}
		e.LeastHits = 1
		for i := range reads {
			e.Reads += reads[i]
			e.Hits += hits[i]
			e.LeastHits = min(e.LeastHits, float64(hits[i])/float64(max(reads[i], 1)))
			e.MostRemote = max(e.MostRemote, reads[i]-hits[i]+more[i])
		}
	}
	return epochs, nil
}

// readElsewhere has the servers of nodes read what these own of a global batch and others read.
func (e *ClusterEpoch) readElsewhere(caches []*nodeCache, tier *nodeCache, owners *order.Owners, dealt [][]int, more []uint64) {
	for node, read := range dealt {
		for _, sample := range read {
			owner := owners.Owner(uint64(sample))
			if owner < 0 || owner == node || caches[owner].read(sample, 0) { // below 0: no cache has room to own it
				continue
			}
			if more[owner]++; tier.read(sample, 0) {
				e.AheadTier++
			} else {
				e.AheadSource++
			}
		}
	}
}

// own gives the samples to the nodes, whose caches keep what they own first.
func (c *Cluster) own(caches []*nodeCache) (*order.Owners, error) {
	nodes := make([]order.Node, len(caches))
	for i := range nodes {
		nodes[i] = order.Node{Name: fmt.Sprint("node-", i), Ranks: 1, Capacity: c.roomOf(i)}
		if c.Names != nil {
			nodes[i].Name = c.Names[i]
		}
	}
	owners, err := order.NewOwners(nodes, c.Order.Samples)
	if err != nil || !c.Affinity {
		return owners, err
	}
	for i, cache := range caches {
		cache.kept = owners.Keep(i, nodes[i].Capacity)
	}
	return owners, nil
}

// deal returns the samples of each node in a global batch.
func (c *Cluster) deal(e *order.Epoch, dealer *order.Dealer, number uint64, nodes int) [][]int {
	if c.Affinity {
		return dealer.Deal(number)
	}
	dealt := make([][]int, nodes)
	for i := range dealt {
		dealt[i] = make([]int, c.Batch)
		e.Fill(dealt[i], number*c.Batch*uint64(nodes)+uint64(i), uint64(nodes))
	}
	return dealt
}
