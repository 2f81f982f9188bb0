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
	// fetchTries is how often Fetch fetches a sample that is gone again each time. The second time the
	// server sends its bytes.
	fetchTries = 3
	// lostFrom: a FETCH of more samples than this part of those that fit into a cache that evicts has their
	// bytes sent at once. Otherwise many of them would be gone before they are copied.
	lostFrom = 4
	// fetchBreaks is how many connections may end during a call without any new sample.
	fetchBreaks = 4
)

// Fetch copies n samples of a fixed-size cache, row k to dst[k*stride:]. It gathers the hits, and
// sends the misses to the server as one request. If all samples are hits, it costs as much as
// Gather and needs no server. It counts hits and misses like Gather, and does not count fetched
// samples again.
//
// Errors: *FetchError when the server could not give some samples; all others are copied.
// ErrNoServer, ErrReplaced and the cause of ctx: only the hits are copied. ErrIndex, ErrSchema and
// ErrClosed as in Gather.
func (s *Served) Fetch(ctx context.Context, indices []int, dst []byte, stride int) error {
	hit := make([]bool, len(indices))
	if n, err := s.Gather(indices, dst, GatherOptions{Stride: stride, Hit: hit}); err != nil || n == len(indices) {
		return err
	}
	size := s.sampleBytes()
	missing := make([]int, 0, len(indices)) // positions
	for k := range indices {
		if !hit[k] {
			missing = append(missing, k)
		}
	}
	return s.fill(ctx, 0, indices, missing, func(k int, data []byte) bool {
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

// FetchMisses is Fetch of samples of any size that the caller has just missed. It counts nothing.
// place returns the memory for the n bytes of indices[k]. Several goroutines call place. They call
// it again for a sample that changes during the call; the last call counts.
//
// It returns the errors of Fetch.
func (s *Served) FetchMisses(ctx context.Context, indices []int, place func(k, n int) []byte) error {
	missing := make([]int, len(indices)) // all of them
	for k := range missing {
		missing[k] = k
	}
	return s.fill(ctx, 0, indices, missing, func(k int, data []byte) bool {
		if !s.seg.Variable() && len(data) != s.sampleBytes() {
			return false
		}
		copy(place(k, len(data)), data)
		return true
	}, func(k int) (hit bool, err error) {
		_, hit, err = s.c.ReadOwn(indices[k], s.c.Copy, func(n int) []byte { return place(k, n) })
		return hit, err
	})
}

// FetchSamples returns samples of any size in the order of indices. The caller owns them. It
// returns the errors of Fetch. With a *FetchError the failed samples are nil.
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
	return samples, s.fill(ctx, 0, indices, missing, func(k int, data []byte) bool {
		samples[k] = bytes.Clone(data)
		return true
	}, func(k int) (bool, error) { return get(k, s.c.Copy) })
}

// GetOrFetch returns one sample, which the caller owns. It returns the errors of Fetch.
func (s *Served) GetOrFetch(ctx context.Context, i int) ([]byte, error) {
	samples, err := s.FetchSamples(ctx, []int{i})
	if err != nil {
		return nil, err
	}
	return samples[0], nil
}

// Prefetch asks the server to read samples when it has no other requests. It returns how many
// samples the server has queued: only misses, and only as many as its queue takes. It returns the
// errors of Fetch.
func (s *Served) Prefetch(ctx context.Context, indices []int) (queued int, err error) {
	all, err := s.numbers(indices)
	if err != nil {
		return 0, err
	}
	all = slices.DeleteFunc(all, func(i int64) bool { return !s.keeps(int(i)) })
	for breaks := 1; len(all) > 0; {
		c, err := s.link.connection(ctx, s.link.timeout)
		if err != nil {
			return queued, err
		}
		n := min(len(all), c.maxIndices)
		p, err := c.do(ctx, control.Prefetch, 0, all[:n], nil)
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

// numbers converts indices to the numbers of the server's protocol. It returns ErrIndex.
func (s *Served) numbers(indices []int) ([]int64, error) {
	all := make([]int64, len(indices))
	for k, i := range indices {
		if i < 0 || i >= s.c.Samples() {
			return nil, fmt.Errorf("%w: index %d is not in 0..%d", ErrIndex, i, s.c.Samples()-1)
		}
		all[k] = int64(i)
	}
	return all, nil
}

// miss is a position of a call that has no sample yet.
type miss struct {
	k     int
	tries int
	done  bool // it has its sample, or has failed

	unstored bool // the server need not store it: see Cache.Keep
}

// group is the same for samples that one request asks for.
func (m *miss) group() int {
	switch {
	case m.unstored:
		return 2
	case m.tries > 0: // gone again: in front
		return 0
	}
	return 1
}

// fill fetches the samples of the missing positions. flags is LOADS or 0: fill adds the other flags of
// FETCH. take receives a sample that comes as bytes, and returns false if they cannot be this sample; nil: no
// bytes can come. get reads a sample from the cache. A sample that is gone by then is fetched again, as bytes.
// If the server goes away, fill waits for the next one and asks it for the rest.
func (s *Served) fill(ctx context.Context, flags uint32, indices, missing []int, take func(k int, data []byte) bool,
	get func(k int) (bool, error)) error {
	f := &filling{s: s, flags: flags, indices: indices, take: take, get: get}
	misses := make([]*miss, len(missing))
	for n, k := range missing {
		misses[n] = &miss{k: k, unstored: take != nil && !s.keeps(indices[k])}
	}
	slices.SortStableFunc(misses, func(a, b *miss) int { return a.group() - b.group() })
	for breaks := 1; ; {
		before := len(misses)
		misses = slices.DeleteFunc(misses, func(m *miss) bool { return m.done })
		if len(misses) == 0 {
			break
		}
		if len(misses) < before {
			breaks = 1
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c, err := s.link.connection(ctx, s.link.timeout)
		if err == nil {
			part := misses[:min(len(misses), c.maxIndices)]
			if other := slices.IndexFunc(part, func(m *miss) bool { return m.group() != part[0].group() }); other > 0 {
				part = part[:other]
			}
			err = f.request(ctx, c, part)
		}
		if errors.Is(err, errEnded) && breaks < fetchBreaks {
			breaks++
			continue
		}
		if err != nil {
			return err
		}
	}
	if failed := f.failed.Failures; len(failed) > 0 {
		slices.SortFunc(failed, func(a, b FetchFailure) int { return a.Position - b.Position })
		return &f.failed
	}
	return nil
}

// filling is one call of fill, with its arguments.
type filling struct {
	s       *Served
	flags   uint32
	indices []int
	take    func(k int, data []byte) bool
	get     func(k int) (bool, error)
	failed  FetchError
}

func (f *filling) fail(m *miss, code control.Code, text string) {
	f.failed.Failures = append(f.failed.Failures, FetchFailure{m.k, f.indices[m.k], code, text})
	m.done = true
}

// flagsFor returns the flags of a request for misses of one group.
func (f *filling) flagsFor(part []*miss) uint32 {
	switch s := f.s; {
	case f.take == nil:
		return control.SlotsOnly
	case part[0].unstored:
		return f.flags | control.Unstored
	case part[0].tries > 0 || s.c.Evicts() && len(part) > int(s.c.Fits()/lostFrom):
		return f.flags | control.Send
	}
	return f.flags
}

// request is fill for one request.
func (f *filling) request(ctx context.Context, c *conn, part []*miss) error {
	wanted := make([]int, len(part))
	for position, m := range part {
		wanted[position] = f.indices[m.k]
	}
	numbers, err := f.s.numbers(wanted)
	if err != nil {
		return err
	}
	var wrong error
	var sample func(position int, data []byte)
	if f.take != nil {
		sample = func(position int, data []byte) {
			if part[position].done = f.take(part[position].k, data); !part[position].done {
				wrong = fmt.Errorf("%w: sample %d came with %d bytes", ErrSchema, numbers[position], len(data))
			}
		}
	}
	p, err := c.do(ctx, control.Fetch, f.flagsFor(part), numbers, sample)
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	closing := false
	for _, one := range p.failures {
		if one.Code == control.CodeClosing {
			closing = true // the next server reads it
		} else {
			f.fail(part[one.Position], one.Code, one.Text)
		}
	}
	if closing {
		why := errors.New("the server is ending, or has removed this cache")
		c.die(why)
		return endedBy(why)
	}
	left := slices.DeleteFunc(slices.Clone(part), func(m *miss) bool { return m.done })
	if err := getAll(left, f.get); err != nil {
		return err
	}
	for _, m := range left {
		if m.tries++; !m.done && m.tries == fetchTries {
			f.fail(m, control.CodeInternal,
				fmt.Sprintf("it was fetched %d times and has left the cache each time: another program clears it", fetchTries))
		}
	}
	return nil
}

// getsPerGoroutine is how many samples are worth one more goroutine.
const getsPerGoroutine = 16

// getAll gets samples that a server has filled. Their bytes are not in this processor's cache, so
// several goroutines share the copies of a large batch.
func getAll(misses []*miss, get func(k int) (bool, error)) error {
	errs := make([]error, max(1, min(runtime.GOMAXPROCS(0), len(misses)/getsPerGoroutine)))
	some := func(g int) {
		for n := g; n < len(misses) && errs[g] == nil; n += len(errs) {
			misses[n].done, errs[g] = get(misses[n].k)
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
