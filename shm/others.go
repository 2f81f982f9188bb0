package shm

import (
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// Others remembers what the other caches of this user may still fill, for a program that creates many: a look stats
// all of them. Create looks again after as many creations as the last look has found caches. It opens them only before
// it refuses. So the work grows with the number of caches, and not with its square. The zero value is ready to use. Not
// safe for concurrent use.
type Others struct {
	looks map[string]*look // by directory; "" for caches without a name
}

// look is what one look at all caches has found.
type look struct {
	promises memory.Promises
	sums     map[memory.Level]memory.Sum // sums of the promises
	tmpfs    memory.Sum                  // their sum in the tmpfs of the directory
	device   uint64                      // device of that tmpfs
	created  int                         // by this program since
	since    memory.Sum                  // sum of what this program has created
	here     memory.Sum                  // its sum in the tmpfs
}

// fewCaches is the least number of creations that one look is for.
const fewCaches = 16

// in returns the last look for a directory, unless a new one is due or has to be exact. named: the cache has a name.
func (o *Others) in(dir string, named, exact bool) *look {
	if l := o.looks[dir]; l != nil && !exact && l.created < max(len(l.promises), fewCaches) {
		return l
	}
	l := &look{promises: memory.Promises{}, sums: map[memory.Level]memory.Sum{}}
	if named {
		addNamed(l.promises, dir, exact)
		l.tmpfs = l.promises.Sum(memory.Level{})
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			l.device = uint64(st.Dev)
		}
	}
	if dir != DefaultDir() {
		addNamed(l.promises, DefaultDir(), exact)
	}
	addAttached(l.promises)
	if o.looks == nil {
		o.looks = map[string]*look{}
	}
	o.looks[dir] = l
	return l
}

// sum returns what counts for a limit.
func (l *look) sum(at memory.Level) memory.Sum {
	s, known := l.sums[at]
	if !known {
		s = l.promises.Sum(at)
		l.sums[at] = s
	}
	return s.Plus(l.since)
}

// created takes notice of a cache that this program has created. All limits are those of the program, so it counts for each.
func (o *Others) created(s *Segment) {
	var st unix.Stat_t
	if o == nil || unix.Fstat(s.FD(), &st) != nil {
		return
	}
	var more memory.Sum
	if bytes := uint64(st.Blocks) * 512; bytes < s.SegmentBytes {
		more = memory.Sum{Bytes: s.SegmentBytes - bytes, Caches: 1}
	}
	for _, l := range o.looks {
		l.created++
		l.since = l.since.Plus(more)
		if s.path != "" && l.device == uint64(st.Dev) {
			l.here = l.here.Plus(more)
		}
	}
}
