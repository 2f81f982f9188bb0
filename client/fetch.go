package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/stocached/stocached/control"
)

const (
	// fetchTries is how often a sample that was fetched and has left the cache again, by a clear, is fetched.
	fetchTries = 3
	// fetchBreaks is how many connections may end under a call that gets no sample in between.
	fetchBreaks = 4
)

// Fetch copies n samples of a fixed-size cache, row k to dst[k*stride:]. Those that are there are gathered, as Gather does; for the others the server is asked, once for all of them.
// With all there it costs what Gather costs, and needs no server. What was there is counted as hits, the rest as misses; what the server brings is not counted again.
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
		_, hit, err := s.c.Copy(indices[k], dst[k*stride:][:size])
		return hit, err
	})
}

// FetchMisses is Fetch of samples that the caller has just looked for and not found: nothing is counted. It is for samples of any size: place says where the bytes of indices[k], n of
// them, are to go. It is called from several goroutines, for a sample once or, when that changes meanwhile, more often: the last call counts.
//
// Errors as Fetch.
func (s *Served) FetchMisses(ctx context.Context, indices []int, place func(k, n int) []byte) error {
	missing := make([]int, len(indices)) // all of them
	for k := range missing {
		missing[k] = k
	}
	return s.fill(ctx, indices, missing, func(k int, data []byte) bool {
		if !s.Variable() && len(data) != s.SampleBytes() {
			return false
		}
		copy(place(k, len(data)), data)
		return true
	}, func(k int) (bool, error) { return s.copyTo(indices[k], func(n int) []byte { return place(k, n) }) })
}

// copyTo copies a sample, whatever its size, and says whether it was there. Not counted.
func (s *Served) copyTo(i int, place func(n int) []byte) (bool, error) {
	for {
		var length [1]uint64
		if ready, err := s.Lengths([]int{i}, length[:]); ready == 0 || err != nil {
			return false, err
		}
		n, hit, err := s.c.Copy(i, place(int(length[0])))
		switch {
		case errors.Is(err, ErrSchema): // it has grown in between
		case err != nil || !hit || n == int(length[0]):
			return hit, err
		}
	}
}

// FetchSamples returns samples of any size, in the order of indices, each the caller's own. Errors as Fetch; with a *FetchError the samples that could not be had are nil.
func (s *Served) FetchSamples(ctx context.Context, indices []int) ([][]byte, error) {
	samples := make([][]byte, len(indices))
	var missing []int
	get := func(k int, get func(i int, dst []byte) (int, bool, error)) (bool, error) {
		data, hit, err := s.getOwn(indices[k], get)
		if hit {
			samples[k] = data
		}
		return hit, err
	}
	for k := range indices {
		hit, err := get(k, s.Get)
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
	}, func(k int) (bool, error) { return get(k, s.c.Copy) })
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
	for breaks := 1; len(all) > 0; {
		c, err := s.link.connection(ctx)
		if err != nil {
			return queued, err
		}
		n := min(len(all), c.maxIndices)
		p, err := c.do(ctx, control.Prefetch, all[:n], nil)
		if errors.Is(err, errEnded) && breaks < fetchBreaks {
			breaks++
			continue
		}
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

// wanted is one position of a call that is not had yet.
type wanted struct {
	k     int
	tries int
	done  bool // had, or failed
}

// fill has the missing positions fetched: take is called with what comes as bytes (false: it cannot be this sample; nil: nothing is to come), get for what is in the cache by then. A server that
// goes away meanwhile is waited for, and asked for what is still missing when it is back.
func (s *Served) fill(ctx context.Context, indices, missing []int, take func(k int, data []byte) bool, get func(k int) (bool, error)) error {
	wants := make([]*wanted, len(missing))
	for n, k := range missing {
		wants[n] = &wanted{k: k}
	}
	var failed FetchError
	for breaks := 1; ; {
		before := len(wants)
		wants = slices.DeleteFunc(wants, func(w *wanted) bool { return w.done })
		if len(wants) == 0 {
			break
		}
		if len(wants) < before {
			breaks = 1
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c, err := s.link.connection(ctx)
		if err == nil {
			err = s.fillPart(ctx, c, indices, wants[:min(len(wants), c.maxIndices)], take, get, &failed)
		}
		if errors.Is(err, errEnded) && breaks < fetchBreaks {
			breaks++
			continue
		}
		if err != nil {
			return err
		}
	}
	if len(failed.Failures) > 0 {
		slices.SortFunc(failed.Failures, func(a, b FetchFailure) int { return a.Position - b.Position })
		return &failed
	}
	return nil
}

// fillPart is fill of one request.
func (s *Served) fillPart(ctx context.Context, c *conn, indices []int, part []*wanted, take func(k int, data []byte) bool, get func(k int) (bool, error), failed *FetchError) error {
	positions := make([]int, len(part))
	for position, w := range part {
		positions[position] = indices[w.k]
	}
	numbers, err := s.numbers(positions)
	if err != nil {
		return err
	}
	var wrong error
	var sample func(position int, data []byte)
	if take != nil {
		sample = func(position int, data []byte) {
			if part[position].done = take(part[position].k, data); !part[position].done {
				wrong = fmt.Errorf("%w: sample %d came with %d bytes", ErrSchema, numbers[position], len(data))
			}
		}
	}
	p, err := c.do(ctx, control.Fetch, numbers, sample)
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	closing := false
	fail := func(w *wanted, code control.Code, text string) {
		failed.Failures = append(failed.Failures, FetchFailure{w.k, indices[w.k], code, text})
		w.done = true
	}
	for _, f := range p.failures {
		if f.Code == control.CodeClosing {
			closing = true // the next server reads it
		} else {
			fail(part[f.Position], f.Code, f.Text)
		}
	}
	if closing {
		why := errors.New("the server is ending, or has removed this cache")
		c.die(why)
		return ended(why)
	}
	left := slices.DeleteFunc(slices.Clone(part), func(w *wanted) bool { return w.done })
	if err := getAll(left, get); err != nil {
		return err
	}
	for _, w := range left {
		if w.tries++; !w.done && w.tries == fetchTries {
			fail(w, control.CodeInternal, fmt.Sprintf("it was fetched %d times and has left the cache each time: somebody clears it", fetchTries))
		}
	}
	return nil
}

// getsPerGoroutine is how many samples are worth another goroutine.
const getsPerGoroutine = 16

// getAll gets samples that a server has filled: a whole batch, perhaps, which nobody has had in the processor's cache yet, so several goroutines share the copying.
func getAll(wants []*wanted, get func(k int) (bool, error)) error {
	errs := make([]error, max(1, min(runtime.GOMAXPROCS(0), len(wants)/getsPerGoroutine)))
	some := func(g int) {
		for n := g; n < len(wants) && errs[g] == nil; n += len(errs) {
			wants[n].done, errs[g] = get(wants[n].k)
		}
	}
	var others sync.WaitGroup
	for g := 1; g < len(errs); g++ {
		others.Go(func() { some(g) })
	}
	some(0)
	others.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
