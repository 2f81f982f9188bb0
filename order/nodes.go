package order

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
)

// Buckets is the number of buckets that nodes own.
const Buckets = 1 << 16

// Node is one machine of a job.
type Node struct {
	Name     string // 1 to 255 bytes, unlike all others. "" for all nodes: their numbers
	Ranks    uint64 // ranks of the job on this node, at least 1
	Capacity uint64 // samples that its cache holds, with a disk below it. 0: not known; then no capacity counts
}

// Owners says which node of a job owns a sample: docs/spec/order.md, "Nodes". It is safe for
// concurrent use. Its memory does not grow with the dataset.
type Owners struct {
	nodes   []Node
	keys    []uint64       // key of each node
	owner   [Buckets]int32 // owner of each bucket; -1: none
	quota   []int          // buckets of each node
	samples uint64
}

// NewOwners deals the buckets of a dataset to nodes, in the order of their ranks. It returns
// ErrInvalid.
func NewOwners(nodes []Node, samples uint64) (*Owners, error) {
	o := &Owners{nodes: slices.Clone(nodes), keys: make([]uint64, len(nodes)), samples: samples}
	if len(nodes) < 1 || len(nodes) > Buckets || samples < 1 || samples > MaxSamples {
		return nil, fmt.Errorf("%w: %d nodes and %d samples; give 1 to %d nodes, and 1 to %d samples",
			ErrInvalid, len(nodes), samples, Buckets, uint64(MaxSamples))
	}
	unnamed := !slices.ContainsFunc(nodes, func(n Node) bool { return n.Name != "" })
	keys, known := o.keys, map[uint64]int{}
	for i := range o.nodes {
		n := &o.nodes[i]
		if unnamed {
			n.Name = fmt.Sprint(i)
		}
		if len(n.Name) < 1 || len(n.Name) > 255 || n.Ranks < 1 || n.Ranks > math.MaxInt32 {
			return nil, fmt.Errorf("%w: node %d has %d ranks and a name of %d bytes; give at least 1 rank, and a name of "+
				"1 to 255 bytes to all nodes or to none", ErrInvalid, i, n.Ranks, len(n.Name))
		}
		keys[i] = nodeKey(n.Name)
		if other, taken := known[keys[i]]; taken {
			if n.Name == o.nodes[other].Name {
				return nil, fmt.Errorf("%w: nodes %d and %d have the same name, %s; give each node a name of its own, such as "+
					"its host name", ErrInvalid, other, i, n.Name)
			}
			return nil, fmt.Errorf("%w: nodes %d (%s) and %d (%s) have names with the same hash, by which nodes are known; "+
				"change one of them, for example to %[5]s-1", ErrInvalid, other, o.nodes[other].Name, i, n.Name)
		}
		known[keys[i]] = i
	}
	o.quota = quotas(o.nodes, keys, samples)
	o.match()
	return o, nil
}

func nodeKey(name string) uint64 {
	h := uint64(0xCBF29CE484222325) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001B3
	}
	return mix(h)
}

// quotas returns how many buckets each node owns: its share of the ranks, at most what it holds.
func quotas(nodes []Node, keys []uint64, samples uint64) []int {
	capped := !slices.ContainsFunc(nodes, func(n Node) bool { return n.Capacity == 0 })
	most, quota, open := make([]uint64, len(nodes)), make([]int, len(nodes)), make([]int, len(nodes))
	for i, n := range nodes {
		open[i], most[i] = i, Buckets
		if capped {
			most[i] = roomFor(n.Capacity, samples)
		}
	}
	slices.SortFunc(open, func(i, j int) int { return cmp.Compare(keys[i], keys[j]) })
	for left := uint64(Buckets); len(open) > 0; {
		var total, given uint64
		for _, i := range open {
			total += nodes[i].Ranks
		}
		share := func(i int) uint64 { return left * nodes[i].Ranks / total }
		var full, room []int
		for _, i := range open {
			if share(i) >= most[i] {
				full = append(full, i)
			} else {
				room = append(room, i)
			}
		}
		if len(full) == 0 {
			for _, i := range open {
				quota[i] = int(share(i))
				given += share(i)
			}
			for _, i := range open[:left-given] { // fewer than there are nodes
				quota[i]++
			}
			break
		}
		for _, i := range full {
			quota[i] = int(most[i])
			left -= most[i]
		}
		open = room
	}
	return quota
}

// roomFor returns how many buckets a cache of this capacity holds.
func roomFor(capacity, samples uint64) uint64 { return min(capacity, samples) * Buckets / samples }

// offer is a bucket that a node holds while buckets are matched.
type offer struct {
	score  uint64
	bucket int
}

// offers is a heap with the worst offer at its top.
type offers []offer

func (o offers) Len() int           { return len(o) }
func (o offers) Less(a, b int) bool { return o[b].before(o[a]) }
func (o offers) Swap(a, b int)      { o[a], o[b] = o[b], o[a] }
func (o *offers) Push(x any)        { *o = append(*o, x.(offer)) }
func (o *offers) Pop() any          { panic("no offer is withdrawn") }

func (o offer) before(p offer) bool {
	return o.score < p.score || o.score == p.score && o.bucket < p.bucket
}

// match gives buckets to nodes: each bucket asks nodes from its best score on, and a node that has
// its quota keeps the better buckets. The result is the stable matching, and there is one.
func (o *Owners) match() {
	keys, held := o.keys, make([]offers, len(o.keys))
	for first := range Buckets {
		o.owner[first] = -1
		var asked struct {
			any        bool
			score, key uint64
		}
		for bucket := first; ; {
			best, bestScore, hash := -1, uint64(0), mix(uint64(bucket)+golden)
			for i, key := range keys {
				score := mix(key ^ hash)
				if asked.any && (score < asked.score || score == asked.score && key <= asked.key) {
					continue
				}
				if best < 0 || score < bestScore || score == bestScore && key < keys[best] {
					best, bestScore = i, score
				}
			}
			if best < 0 {
				break // every node has refused it
			}
			asked.any, asked.score, asked.key = true, bestScore, keys[best]
			mine := offer{bestScore, bucket}
			if h := &held[best]; h.Len() < o.quota[best] {
				heap.Push(h, mine)
				o.owner[bucket] = int32(best)
				break
			} else if h.Len() > 0 && mine.before((*h)[0]) {
				loser := (*h)[0]
				(*h)[0] = mine
				heap.Fix(h, 0)
				o.owner[bucket], o.owner[loser.bucket] = int32(best), -1
				bucket, asked.score = loser.bucket, loser.score // it has asked all nodes up to this one
			}
		}
	}
}

// Owner returns the number of the node that owns a sample, or -1 if none does.
func (o *Owners) Owner(index uint64) int { return int(o.owner[mix(index+golden)%Buckets]) }

// Kept is a set of buckets. Bucket b is bit b mod 8 of byte b / 8.
type Kept [Buckets / 8]byte

// Has says whether a sample is in a bucket of the set.
func (k *Kept) Has(index uint64) bool {
	bucket := mix(index+golden) % Buckets
	return k[bucket/8]>>(bucket%8)&1 == 1
}

// Keep returns the buckets that the cache of a node keeps. They are those that the node owns, and copies
// of others if there is space. capacity: samples that the cache holds. 0: unknown, so it keeps all.
func (o *Owners) Keep(node int, capacity uint64) *Kept {
	kept, room := new(Kept), Buckets
	if capacity > 0 {
		room = int(roomFor(capacity, o.samples))
	}
	var others []offer
	for bucket, owner := range o.owner {
		if owner == int32(node) {
			kept[bucket/8] |= 1 << (bucket % 8)
			room--
		} else {
			others = append(others, offer{mix(o.keys[node] ^ mix(uint64(bucket)+golden)), bucket})
		}
	}
	slices.SortFunc(others, func(a, b offer) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.bucket, b.bucket))
	})
	for _, copied := range others[:max(0, min(room, len(others)))] {
		kept[copied.bucket/8] |= 1 << (copied.bucket % 8)
	}
	return kept
}

// Ranks returns the number of ranks of all nodes.
func (o *Owners) Ranks() (ranks uint64) {
	for _, n := range o.nodes {
		ranks += n.Ranks
	}
	return ranks
}

// NodeOf returns the number of the node of a rank, or -1.
func (o *Owners) NodeOf(rank uint64) int {
	for i, n := range o.nodes {
		if rank < n.Ranks {
			return i
		}
		rank -= n.Ranks
	}
	return -1
}

// Nodes returns the number of nodes.
func (o *Owners) Nodes() int { return len(o.nodes) }
