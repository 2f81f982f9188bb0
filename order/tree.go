package order

import (
	"container/heap"
	"math"
)

// maxRatioSum bounds the sum of the ratios of a mix, so that no product of two of them takes more
// than 64 bits.
const maxRatioSum = 1 << 31

// never is a position that no epoch has.
const never = math.MaxUint64

// tree says which dataset has a position of a mix. Each node distributes its items to two others by
// weight. Leaves are the datasets.
type tree struct {
	nodes []node // 0..k-1: leaves. The last one is the root
}

type node struct {
	weight          uint64
	key             uint64
	lesser, greater int
	parent          int
}

// byWeight is a heap of the nodes without a parent, least weight first.
type byWeight struct {
	nodes []node
	open  []int
}

func (b byWeight) Len() int { return len(b.open) }
func (b byWeight) Less(i, j int) bool {
	v, w := b.nodes[b.open[i]].weight, b.nodes[b.open[j]].weight
	return v < w || v == w && b.open[i] < b.open[j]
}
func (b byWeight) Swap(i, j int) { b.open[i], b.open[j] = b.open[j], b.open[i] }
func (b *byWeight) Push(x any)   { b.open = append(b.open, x.(int)) }
func (b *byWeight) Pop() any {
	last := b.open[len(b.open)-1]
	b.open = b.open[:len(b.open)-1]
	return last
}

// newTree makes the tree of ratios from 1 on whose sum is below maxRatioSum.
func newTree(ratios []uint64, seed uint64) *tree {
	b := byWeight{nodes: make([]node, len(ratios), 2*len(ratios)-1), open: make([]int, len(ratios))}
	for k, ratio := range ratios {
		b.nodes[k].weight = ratio
		b.open[k] = k
	}
	heap.Init(&b)
	for len(b.open) > 1 {
		lesser, greater, number := heap.Pop(&b).(int), heap.Pop(&b).(int), len(b.nodes)
		weight := b.nodes[lesser].weight + b.nodes[greater].weight
		b.nodes = append(b.nodes, node{weight: weight, key: chain(seed, ofNode, uint64(number), weight),
			lesser: lesser, greater: greater})
		b.nodes[lesser].parent, b.nodes[greater].parent = number, number
		heap.Push(&b, number)
	}
	return &tree{b.nodes}
}

func (t *tree) datasets() int { return (len(t.nodes) + 1) / 2 }

// first returns the first item of a stratum. The lesser child, of weight a, gets one item of each
// stratum.
func (n *node) first(stratum, a uint64) uint64 {
	return stratum/a*n.weight + (stratum%a*n.weight+a-1)/a
}

// chosen returns the item of a stratum that the lesser child gets.
func (n *node) chosen(stratum, first, a uint64) uint64 {
	return first + below(mix(n.key+(stratum+1)*golden), n.first(stratum+1, a)-first)
}

// lessers returns how many of the items before item the lesser child gets, and whether it gets
// item.
func (n *node) lessers(item, a uint64) (before uint64, it bool) {
	stratum := item/n.weight*a + item%n.weight*a/n.weight
	chosen := n.chosen(stratum, n.first(stratum, a), a)
	if item > chosen {
		stratum++
	}
	return stratum, item == chosen
}

// at returns the dataset of a position, and which of its items comes there.
func (t *tree) at(position uint64) (dataset int, item uint64) {
	item = position
	for k := len(t.nodes) - 1; ; {
		if k < t.datasets() {
			return k, item
		}
		n := &t.nodes[k]
		before, lesser := n.lessers(item, t.nodes[n.lesser].weight)
		if lesser {
			k, item = n.lesser, before
		} else {
			k, item = n.greater, item-before
		}
	}
}

// count returns how many of the items before a position a dataset gets.
func (t *tree) count(dataset int, position uint64) uint64 {
	var path []int // from the leaf up, without the root
	for k := dataset; k != len(t.nodes)-1; k = t.nodes[k].parent {
		path = append(path, k)
	}
	items := position
	for i := len(path) - 1; i >= 0; i-- {
		n := &t.nodes[t.nodes[path[i]].parent]
		before, _ := n.lessers(items, t.nodes[n.lesser].weight)
		if path[i] == n.lesser {
			items = before
		} else {
			items -= before
		}
	}
	return items
}

// position returns the position of a dataset's item: the inverse of at. It returns never for
// positions from MaxSamples on.
func (t *tree) position(dataset int, item uint64) uint64 {
	for k := dataset; k != len(t.nodes)-1; {
		parent := t.nodes[k].parent
		n := &t.nodes[parent]
		a := t.nodes[n.lesser].weight
		if own := t.nodes[k].weight; item/own > MaxSamples/n.weight {
			return never
		}
		if k == n.lesser {
			item = n.chosen(item, n.first(item, a), a)
		} else {
			b := n.weight - a
			stratum := item/b*a + item%b*a/b // the last stratum before which the greater child has no more items
			first := n.first(stratum, a)
			chosen := n.chosen(stratum, first, a)
			if item += stratum; item >= chosen {
				item++
			}
		}
		k = parent
	}
	if item >= MaxSamples {
		return never
	}
	return item
}
