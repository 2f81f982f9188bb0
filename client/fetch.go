package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stocached/stocached/control"
)

// fetchTries is how often a sample that was fetched and has left the cache again, by a clear, is fetched.
const fetchTries = 3

// Fetch copies n samples of a fixed-size cache, row k to dst[k*stride:]. Those that are there are gathered, as Gather does; for the others the server is asked, once for all of them.
// With all there it costs what Gather costs, and needs no server.
//
// *FetchError when some samples could not be had; all others were. ErrNoServer, ErrReplaced, and the cause of ctx: then only those that were there are copied. ErrIndex, ErrSchema,
// ErrClosed as Gather.
func (s *Served) Fetch(ctx context.Context, indices []int, dst []byte, stride int) error {
	hit := make([]bool, len(indices))
	if n, err := s.Gather(indices, Whole, dst, stride, hit, 1); err != nil || n == len(indices) {
		return err
	}
	size := s.SampleBytes()
	missing := make([]int, 0, len(indices)) // positions
	for k := range indices {
		if !hit[k] {
			missing = append(missing, k)
		}
	}
	return s.fill(ctx, indices, missing, func(k int, data []byte) bool {
		if len(data) != size {
			return false
		}
		copy(dst[k*stride:], data)
		return true
	}, func(k int) (bool, error) {
		_, hit, err := s.Get(indices[k], dst[k*stride:][:size])
		return hit, err
	})
}

// FetchSamples returns samples of any size, in the order of indices, each the caller's own. Errors as Fetch; with a *FetchError the samples that could not be had are nil.
func (s *Served) FetchSamples(ctx context.Context, indices []int) ([][]byte, error) {
	samples := make([][]byte, len(indices))
	var missing []int
	get := func(k int) (bool, error) {
		data, hit, err := s.getOwn(indices[k])
		if hit {
			samples[k] = data
		}
		return hit, err
	}
	for k := range indices {
		hit, err := get(k)
		if err != nil {
			return nil, err
		}
		if !hit {
			missing = append(missing, k)
		}
	}
	if len(missing) == 0 {
		return samples, nil
	}
	return samples, s.fill(ctx, indices, missing, func(k int, data []byte) bool {
		samples[k] = bytes.Clone(data)
		return true
	}, get)
}

// GetOrFetch returns one sample, the caller's own. Errors as Fetch.
func (s *Served) GetOrFetch(ctx context.Context, i int) ([]byte, error) {
	samples, err := s.FetchSamples(ctx, []int{i})
	if err != nil {
		return nil, err
	}
	return samples[0], nil
}

// Prefetch asks the server to read samples when it has nothing better to do, and returns how many it queued: those that are not there, and that it had room for.
// Errors as Fetch.
func (s *Served) Prefetch(ctx context.Context, indices []int) (queued int, err error) {
	all, err := s.numbers(indices)
	if err != nil {
		return 0, err
	}
	for len(all) > 0 {
		c, err := s.link.connection(ctx)
		if err != nil {
			return queued, err
		}
		n := min(len(all), c.maxIndices)
		p, err := c.do(ctx, control.Prefetch, all[:n], nil)
		if err != nil {
			return queued, err
		}
		queued += p.queued
		all = all[n:]
	}
	return queued, nil
}

// numbers are indices as the server takes them. ErrIndex.
func (s *Served) numbers(indices []int) ([]int64, error) {
	all := make([]int64, len(indices))
	for k, i := range indices {
		if i < 0 || i >= s.Samples() {
			return nil, fmt.Errorf("%w: index %d is not in 0..%d", ErrIndex, i, s.Samples()-1)
		}
		all[k] = int64(i)
	}
	return all, nil
}

// fill has the missing positions fetched: take is called with what comes as bytes (false: it cannot be this sample; nil: no bytes are sent), get for what is in the cache by then.
func (s *Served) fill(ctx context.Context, indices, missing []int, take func(k int, data []byte) bool, get func(k int) (bool, error)) error {
	var failed FetchError
	again := true // one connection may end under us: the server may be back already
	for try := 0; len(missing) > 0; try++ {
		var left []int
		for len(missing) > 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			c, err := s.link.connection(ctx)
			if err != nil {
				return err
			}
			part := missing[:min(len(missing), c.maxIndices)]
			gone, err := s.fillPart(ctx, c, indices, part, take, get, &failed)
			if again && errors.Is(err, errEnded) {
				again = false
				continue
			}
			if err != nil {
				return err
			}
			missing = missing[len(part):]
			left = append(left, gone...)
		}
		if missing = left; try+1 == fetchTries {
			for _, k := range missing {
				failed.Failures = append(failed.Failures, FetchFailure{k, indices[k], control.CodeInternal,
					fmt.Sprintf("it was fetched %d times and has left the cache each time: somebody clears it", fetchTries)})
			}
			break
		}
	}
	if len(failed.Failures) > 0 {
		return &failed
	}
	return nil
}

// fillPart is fill of one request; it returns the positions that are there no more.
func (s *Served) fillPart(ctx context.Context, c *conn, indices, part []int, take func(k int, data []byte) bool, get func(k int) (bool, error), failed *FetchError) (left []int, err error) {
	wanted := make([]int, len(part))
	for position, k := range part {
		wanted[position] = indices[k]
	}
	numbers, err := s.numbers(wanted)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // protects done and wrong: a sample may still be on its way when ctx ends
	done := make([]bool, len(part))
	var wrong error
	sample := func(position int, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		if done[position] = take(part[position], data); !done[position] {
			wrong = fmt.Errorf("%w: sample %d came with %d bytes", ErrSchema, numbers[position], len(data))
		}
	}
	if take == nil {
		sample = nil
	}
	p, err := c.do(ctx, control.Fetch, numbers, sample)
	mu.Lock()
	defer mu.Unlock()
	if err := errors.Join(err, wrong); err != nil {
		return nil, err
	}
	for _, f := range p.failures {
		k := part[f.Position]
		failed.Failures = append(failed.Failures, FetchFailure{k, indices[k], f.Code, f.Text})
		done[f.Position] = true
	}
	for position, k := range part {
		if done[position] {
			continue
		}
		hit, err := get(k)
		if err != nil {
			return nil, err
		}
		if !hit {
			left = append(left, k)
		}
	}
	return left, nil
}
