package client

import "context"

// Fill asks the server to read and store the misses among these samples. No sample comes through
// the socket, so Fill costs this process almost nothing. An index may occur more than once. If all
// samples are READY, Fill needs no server.
//
// It returns *FetchError when some samples failed; all others are READY. In a cache that evicts, all
// others were READY at some moment during the call, and may have lost their slots since. No sample
// loses its slot for a Fill: it fills free slots. CodeNoSlot says that a
// sample got no slot: the cache is full, the sample can have no slot, or another client is filling
// it. Inspect().State tells which. Other errors are those of Fetch.
func (s *Served) Fill(ctx context.Context, indices []int) error {
	there := func(k int) (bool, error) {
		state, err := s.c.State(indices[k])
		return state == StateReady, err
	}
	var missing []int
	for k := range indices {
		ready, err := there(k)
		if err != nil {
			return err
		}
		if !ready {
			missing = append(missing, k)
		}
	}
	if s.c.Evicts() {
		there = func(int) (bool, error) { return true, nil } // it was, when the server stored it
	}
	return s.fill(ctx, 0, indices, missing, nil, there)
}
