package served

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
)

// Problems returns a line for each thing that an operator should know or change: "failing: " with what fails, or "tier: "
// with a node of a tier that is left out.
func (h *Cache) Problems() (lines []string) {
	if !h.Enter() {
		return nil
	}
	defer h.Leave()
	add := func(what, text string) {
		lines = append(lines, fmt.Sprintf("%s: cache %s: %s", what, h.Name, source.OneLine(text)))
	}
	if h.lostFile() {
		add("failing", fmt.Sprintf("another program removed the file %s, so no command sees the cache, and programs get it from this server "+
			"only; restart the server, which makes an empty one", h.segment.Path()))
	}
	h.stats().Troubles(h.Tiers(), add)
	return lines
}

// Troubles calls add for each thing of a cache that is wrong now: "failing" or "tier", and a line.
func (f Stats) Troubles(tiers []tier.Status, add func(what, line string)) {
	if f.Retrying > 0 {
		add("failing", fmt.Sprintf("reads that have failed and will be tried again: %d", f.Retrying))
	}
	for _, one := range f.Failures {
		add("failing", one.String())
	}
	if f.Stuck > 0 {
		add("failing", fmt.Sprintf("reads that were given up and have not returned: %d", f.Stuck))
	}
	for _, line := range tier.Problems(tiers) {
		add("tier", line)
	}
}

// lostFile says whether another program removed the file of the cache. The caller has entered.
func (h *Cache) lostFile() bool {
	// In this order: the server says so before it removes the file.
	return !h.segment.HasName() && !h.removes.Load()
}

// fulls returns how many sets have found no place. The segment is open.
func (h *Cache) fulls() (n uint64) {
	for r := range h.segment.RecordsUsed() {
		n += h.segment.Count(r, shm.Full)
	}
	return n
}

// failing returns what fails now. It looks at the memory, so that who asks after an error need not wait for the janitor.
// The caller has entered.
func (h *Cache) failing() []wrap.Failing {
	h.lookForMemory()
	return h.failures.Now()
}

// lookForMemory takes notice of memory that is short. The caller has entered.
func (h *Cache) lookForMemory() {
	h.looks.Lock()
	defer h.looks.Unlock()
	full := h.fulls()
	if why := h.cache.Short(); errors.Is(why, shm.ErrFull) {
		// The cache is not full: it has places, and no memory for them.
		h.failures.Short(full-min(h.full, full), strings.TrimPrefix(why.Error(), shm.ErrFull.Error()+": "))
	}
	h.full = full
}
