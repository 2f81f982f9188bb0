package memory

import (
	"fmt"
	"math"
	"strconv"
)

// Promises holds what caches of this user may still fill, by file.
type Promises map[Inode]*Promise

// Inode identifies a file under any name.
type Inode struct{ Dev, Ino uint64 }

// Promise is the number of bytes that one cache may still fill.
type Promise struct {
	Bytes uint64
	// shared is, for each version of cgroups, the largest depth of a level that a client of the
	// cache shares with this process; -1: no client shares one.
	shared depths
}

// depths are depths of levels, by version of cgroups; -1: none.
type depths [3]int

// NewPromise returns the promise of a cache that may still fill so many bytes. No client of it is
// known yet.
func NewPromise(bytes uint64) *Promise { return &Promise{bytes, depths{-1, -1, -1}} }

// Sum is a number of bytes that a number of caches may still fill.
type Sum struct {
	Bytes  uint64
	Caches int
}

// Plus adds two sums. Sizes of files may lie: the bytes end at the largest number.
func (s Sum) Plus(more Sum) Sum {
	return Sum{s.Bytes + min(more.Bytes, math.MaxUint64-s.Bytes), s.Caches + more.Caches}
}

// Sum adds the promises that count for a limit. For the machine all caches count; for a cgroup
// those with a client in it. Full caches do not count.
func (p Promises) Sum(of Level) (s Sum) {
	for _, one := range p {
		if one.Bytes > 0 && (of.version == 0 || one.shared[of.version] >= of.depth) {
			s = s.Plus(Sum{one.Bytes, 1})
		}
	}
	return s
}

// Tightest returns the space of the limit that leaves the least after the promises of other caches.
func (l Limits) Tightest(promised func(Level) Sum) Space {
	least := Space{Left: Unlimited}
	for _, r := range l {
		s := r.space()
		if p := promised(r.level); p.Caches > 0 {
			s.Left -= min(s.Left, p.Bytes)
			s.Text += fmt.Sprintf(", less %s that other caches (%d) have yet to fill, leaves %s",
				Size(p.Bytes), p.Caches, Size(s.Left))
		}
		if least.Text == "" || s.Left < least.Left {
			least = s
		}
	}
	return least
}

// Cgroups are the cgroups of this process, to compare with those of others.
type Cgroups struct {
	kernel      kernel
	hierarchies []hierarchy
}

// OwnCgroups reads them. Those that it cannot read are none.
func OwnCgroups() Cgroups { return kernel{"/"}.ownCgroups() }

func (k kernel) ownCgroups() Cgroups {
	hierarchies, _ := k.hierarchies()
	return Cgroups{k, hierarchies}
}

// AddClient takes a process into account that is a client of caches: the limits of the cgroups that
// it shares with this process count their promises.
func (p Promises) AddClient(pid int, caches []Inode, own Cgroups) {
	shared := own.shared(pid)
	for _, id := range caches {
		if one := p[id]; one != nil {
			one.raise(shared)
		}
	}
}

// shared returns the depths of the levels that a process shares with this one.
func (c Cgroups) shared(pid int) depths {
	shared := depths{-1, -1, -1}
	groups, _ := c.kernel.groups(strconv.Itoa(pid))
	for _, h := range c.hierarchies {
		if groups[h.version] == "" {
			continue
		}
		ours, theirs, depth := elements(h.group), elements(below(groups[h.version], h.root)), 0
		for depth < min(len(ours), len(theirs)) && ours[depth] == theirs[depth] {
			depth++
		}
		shared[h.version] = max(shared[h.version], depth)
	}
	return shared
}

// raise takes one more client into account.
func (one *Promise) raise(shared depths) {
	for version, depth := range shared {
		one.shared[version] = max(one.shared[version], depth)
	}
}
