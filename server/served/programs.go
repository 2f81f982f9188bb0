package served

import (
	"fmt"
	"time"

	"github.com/stocached/stocached/source"
)

// Offer takes a sample that a program has loaded, and says whether a tier takes it. If the program has decoded it, the
// cache takes it too. The caller has entered. Errors:
// source.ErrInvalid.
func (h *Cache) Offer(i int, sample []byte) (bool, error) {
	if h.programs == nil {
		return false, fmt.Errorf("%w: the samples of cache %s come from its source", source.ErrInvalid, h.Name)
	}
	if h.programs.Info().Programs { // which has stored it
		return h.programs.Offer(i, sample)
	}
	if size, err := h.programs.Size(i); err == nil && size == len(sample) { // before others hear of it
		h.filler.Decoded(i, sample, h.programs.Took(i))
	}
	return h.programs.Offer(i, sample)
}

// Damaged ends the load of a sample whose file a program was to decode, and found damaged. The caller has entered.
func (h *Cache) Damaged(i int, reason string) {
	h.filler.Damaged(i, reason)
	h.EndLoad(i)
}

// BeginLoads says that a program decodes the files of these samples from now on. The caller has entered.
func (h *Cache) BeginLoads(indices []int64) {
	for _, i := range indices {
		if h.programs != nil {
			h.programs.Begin(int(i))
		}
	}
}

// EndLoad ends the load of a sample that a program gives up. The caller has entered.
func (h *Cache) EndLoad(i int) {
	if h.programs != nil {
		h.programs.Fail(i)
	}
}

// WhenLoaded is tier.Programs.WhenEnded. now is nil too if programs load no samples of the cache, or it is closed.
func (h *Cache) WhenLoaded(indices []int, most time.Duration, then func()) (now func()) {
	if !h.Enter() {
		return nil
	}
	defer h.Leave()
	if h.programs == nil {
		return nil
	}
	return h.programs.WhenEnded(indices, most, then)
}

// EndLoads ends all loads of a program that is gone.
func (h *Cache) EndLoads(by any) {
	if h.Enter() {
		if h.programs != nil {
			h.programs.Leave(by)
		}
		h.Leave()
	}
}
