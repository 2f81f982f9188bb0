package client

import "context"

// Fill has the server read what is not there of these samples, and store it. No sample comes over the socket: it costs this process next to nothing. An index may occur more
// than once. With all there it needs no server.
//
// *FetchError when some samples could not be had; all others are there. Its CodeNoSlot says that a sample got no slot: the cache is full, can have none for it, or somebody else
// was just filling it, which State tells. Other errors as Fetch.
func (s *Served) Fill(ctx context.Context, indices []int) error {
	there := func(k int) (bool, error) {
		state, err := s.State(indices[k])
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
	return s.fill(ctx, indices, missing, nil, there)
}
