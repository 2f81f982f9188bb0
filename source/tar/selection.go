package tar

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// selection says which samples of a shard are read, and which of their members. It is immutable.
type selection struct {
	kept    []uint32  // numbers of the samples that are read; nil: all
	samples int       // number of samples that are read
	skipped int       // number of samples that lack a field
	unused  int       // members of samples that are read, in no wanted field
	largest int       // number in the shard of the largest sample; -1: none
	choices []choices // choices of each field of the index
}

// choices say which wanted field a field of the index belongs to.
type choices struct {
	wanted int    // number of the wanted field; -1: none
	rank   int    // among the names of the wanted field: the lowest rank is taken
	pad    uint64 // its data takes a multiple of this in a sample; 0: a number, which has a fixed size
}

const missing = -1 // bytes of a missing member

// choose makes the selection of a shard. It returns ErrInvalid for the first sample that lacks a
// field, unless skip is set. keys: samples have their keys. whole: it does so for members in no field.
func choose(s *shard, wanted []field, keys, skip, whole bool) (selection, error) {
	x, c := s.index, selection{largest: -1, choices: choicesOf(s.index.fields, wanted, keys)}
	key := keyReader{rest: x.keys}
	w, most := &work{members: make([]member, len(wanted)), ranks: make([]int, len(wanted))}, uint64(0)
	several := slices.ContainsFunc(wanted, func(f field) bool { return len(f.names) > 1 })
	for i, start := 0, 0; i < x.samples; i++ {
		end := x.start(i + 1)
		if keys {
			key.next()
		}
		used, bytes := c.count(x, start, end)
		if several || used < len(wanted) { // the count is not enough, or a field is missing
			var lacks int
			if used, lacks = c.find(x, i, w); lacks >= 0 && !skip {
				return c, s.lacking(i, wanted, w.members)
			} else if lacks >= 0 {
				c.skip(i)
				start = end
				continue
			}
			bytes = c.bytes(w)
		}
		if c.skipped > 0 {
			c.kept = append(c.kept, uint32(i))
		}
		c.samples++
		if c.unused += end - start - used; whole && c.unused > 0 {
			return c, fmt.Errorf("%w: %s: sample %q has %s, and the first sample has %s: name in fields the members that all "+
				"samples have; others are not read. Of shards on this machine, Python's source() reads all that each sample has",
				source.ErrInvalid, s.path, x.key(i), strings.Join(x.fieldsOf(i), ", "), fieldNames(wanted))
		}
		if bytes += roundUp(uint64(len(key.key)), shm.UnitBytes); bytes >= most {
			most, c.largest = bytes, i
		}
		start = end
	}
	return c, nil
}

func choicesOf(fields []string, wanted []field, keys bool) []choices {
	all, pad := make([]choices, len(fields)), uint64(shm.UnitBytes)
	if len(wanted) == 1 && !keys { // a sample of one field is only its bytes
		pad = 1
	}
	for k, name := range fields {
		all[k].wanted = -1
		for w, f := range wanted {
			rank := slices.Index(f.names, name)
			if rank < 0 {
				continue
			}
			if all[k] = (choices{w, rank, pad}); f.number {
				all[k].pad = 0
			}
		}
	}
	return all
}

// count counts the members from start to end in wanted fields, and their bytes in a sample.
func (c *selection) count(x *index, start, end int) (used int, bytes uint64) {
	for k := start; k < end; k++ {
		m := x.member(k)
		if to := &c.choices[m.field]; to.wanted >= 0 {
			used++
			if to.pad > 0 {
				bytes += (uint64(m.bytes) + to.pad - 1) &^ (to.pad - 1)
			}
		}
	}
	return used, bytes
}

// bytes returns the bytes of the members in w in a sample.
func (c *selection) bytes(w *work) (bytes uint64) {
	for _, m := range w.members {
		if pad := c.choices[m.field].pad; pad > 0 {
			bytes += roundUp(uint64(m.bytes), pad)
		}
	}
	return bytes
}

// skip leaves sample i out.
func (c *selection) skip(i int) {
	if c.skipped == 0 {
		c.kept = []uint32{}
		for k := range i {
			c.kept = append(c.kept, uint32(k))
		}
	}
	c.skipped++
}

// find finds the wanted members of sample i, by its number in the shard. It returns their number,
// and the number of a wanted field that is missing, or -1.
func (c *selection) find(x *index, i int, w *work) (used, lacks int) {
	members, ranks := w.members, w.ranks
	for k := range members {
		members[k].bytes = missing
	}
	for k := x.start(i); k < x.start(i+1); k++ {
		m := x.member(k)
		to := c.choices[m.field]
		if to.wanted < 0 {
			continue
		}
		if members[to.wanted].bytes == missing {
			used++
		} else if to.rank > ranks[to.wanted] {
			continue
		}
		members[to.wanted], ranks[to.wanted] = m, to.rank
	}
	for k := range members {
		if members[k].bytes == missing {
			return used, k
		}
	}
	return used, -1
}

// number returns the number in the shard of the i-th sample that is read.
func (c *selection) number(i int) int {
	if c.kept == nil {
		return i
	}
	return int(c.kept[i])
}

// lacking returns ErrInvalid with the missing fields of a sample and those that it has.
func (s *shard) lacking(i int, wanted []field, members []member) error {
	var lacks []string
	for k, f := range wanted {
		if members[k].bytes == missing {
			lacks = append(lacks, strings.Join(f.names, ";"))
		}
	}
	hint := ""
	if s.index.links > 0 {
		hint = fmt.Sprintf(" %d links in this shard hold no data: make it with tar --dereference --hard-dereference.",
			s.index.links)
	}
	return fmt.Errorf("%w: %s: sample %q has no %s, it has %s.%s Members of a sample must be adjacent (tar "+
		"--sort=name). Name the fields that all samples have in fields, "+
		"or leave such samples out with missing: skip", source.ErrInvalid, s.path, s.index.key(i), strings.Join(lacks,
		", "), strings.Join(s.index.fieldsOf(i), ", "), hint)
}

// fieldsOf returns the names of the fields of sample i.
func (x *index) fieldsOf(i int) []string {
	var names []string
	for k := x.start(i); k < x.start(i+1); k++ {
		names = append(names, x.fields[x.member(k).field])
	}
	return names
}
