package served

import (
	"fmt"

	"github.com/stocached/stocached/source"
)

// Offer takes a sample that a program has loaded, and says whether a tier takes it. The caller has entered. Errors:
// source.ErrInvalid.
func (h *Cache) Offer(i int, sample []byte) (bool, error) {
	if h.programs == nil {
		return false, fmt.Errorf("%w: the samples of cache %s come from its source", source.ErrInvalid, h.Name)
	}
	return h.programs.Offer(i, sample)
}

// EndLoad ends the load of a sample that a program gives up. The caller has entered.
func (h *Cache) EndLoad(i int) {
	if h.programs != nil {
		h.programs.Fail(i)
	}
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
