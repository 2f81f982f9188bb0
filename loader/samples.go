package loader

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Samples is where a Loader gets samples from: FromSource, FromCache or FromServer. It uses what it was made of, which stays the caller's and MUST outlive the loops over batches.
type Samples struct {
	samples  int
	bytes    int // of every sample; variable: unused
	variable bool

	cache Cache                   // nil: none
	load  Load                    // what is not in the cache; nil: by fetch
	fetch Fetcher                 // nil: by load
	where func(i int) string      // says where a sample comes from, for messages; nil: unknown
	soon  func(indices []int) int // told which samples will be loaded next; nil: not told
}

// Cache is a cache of samples, such as a *client.Cache. Its methods are those of that type.
type Cache interface {
	Samples() int
	SampleBytes() int
	Variable() bool
	Gather(indices []int, field int, dst []byte, stride int, hit []bool, threads int) (int, error)
	Lengths(indices []int, lengths []uint64) (int, error)
	GatherPacked(indices []int, dst []byte, offsets, lengths []uint64, hit []bool, threads int) (int, error)
	Set(i int, data []byte, flags cache.Flags) (cache.Result, error)
}

// Fetcher is a cache that a server fills, such as a *client.Served.
type Fetcher interface {
	Cache
	// FetchMisses has the server bring samples that were not in the cache. place says where the n bytes of indices[k] go; it may be called more than once for a sample, and from
	// many goroutines.
	FetchMisses(ctx context.Context, indices []int, place func(k, n int) []byte) error
}

// Load appends sample i to dst and returns the result, as the functions of package strconv do: dst is the memory of a batch, and has room for a sample where all are of one size. Or it
// returns memory of its own, which is copied at once and never written to. It is called from many goroutines. It MUST NOT keep dst, and MUST return soon after ctx has ended: the end of a
// loop over batches waits for it.
type Load func(ctx context.Context, i int, dst []byte) ([]byte, error)

// FromSource reads every sample from a source.
func FromSource(s source.Source) Samples {
	info := s.Info()
	from := Samples{samples: info.Samples, bytes: int(info.Schema.SampleBytes), variable: info.Schema.Variable, load: read(s), where: s.Where}
	if ahead, ok := s.(interface{ Prefetch(indices []int) int }); ok { // wrap.Ahead
		from.soon = ahead.Prefetch
	}
	return from
}

// FromCache takes samples from a cache, and loads and stores those that it does not have. That there is no room for one is no error. Others who miss a sample at the same time load it
// too, and the first one's is kept.
func FromCache(c Cache, load Load) Samples {
	return Samples{samples: c.Samples(), bytes: c.SampleBytes(), variable: c.Variable(), cache: c, load: load}
}

// FromCacheAndSource is FromCache with a source to load from. ErrInvalid when its samples are not what the cache holds.
func FromCacheAndSource(c Cache, s source.Source) (Samples, error) {
	from, other := FromCache(c, read(s)), FromSource(s)
	from.where, from.soon = other.where, other.soon
	switch {
	case from.samples != other.samples:
		return from, fmt.Errorf("%w: the cache is of %d samples, and the source has %d; make a cache for this source", order.ErrInvalid, from.samples, other.samples)
	case from.variable != other.variable:
		return from, fmt.Errorf("%w: samples of one of the two, cache and source, differ in size; make a cache for this source", order.ErrInvalid)
	case !from.variable && from.bytes != other.bytes:
		return from, fmt.Errorf("%w: the cache is of samples of %d bytes, and those of the source have %d; make a cache for this source", order.ErrInvalid, from.bytes, other.bytes)
	}
	return from, nil
}

// FromServer takes samples from a cache that a server fills, and has it bring those that it does not have: those of a batch by one request.
func FromServer(c Fetcher) Samples {
	return Samples{samples: c.Samples(), bytes: c.SampleBytes(), variable: c.Variable(), cache: c, fetch: c}
}

// read loads from a source.
func read(s source.Source) Load {
	return func(ctx context.Context, i int, dst []byte) ([]byte, error) {
		size, err := s.Size(i)
		if err != nil {
			return nil, err
		}
		from := len(dst)
		dst = slices.Grow(dst, size)[:from+size]
		n, err := s.Read(ctx, i, dst[from:])
		return dst[:from+n], err
	}
}

// store keeps a sample that was loaded. That it has no room or may not is no error.
func (s *Samples) store(i int, data []byte) error {
	if s.cache == nil {
		return nil
	}
	_, err := s.cache.Set(i, data, 0)
	if errors.Is(err, shm.ErrReadOnly) {
		return nil
	}
	return err
}

// check: ErrInvalid.
func (s *Samples) check() error {
	if s.load == nil && s.fetch == nil {
		return fmt.Errorf("%w: there is nothing to load samples from; use FromSource, FromCache or FromServer", order.ErrInvalid)
	}
	return nil
}

// SampleError is the error of a sample that could not be loaded. It is the first one, in the loader's order, of those that could not.
type SampleError struct {
	Index    int
	Position uint64 // in the batch
	Where    string // it comes from, where the source knows; else ""
	Err      error  // of Load or the source
}

func (e *SampleError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("sample %d: %v", e.Index, e.Err)
	}
	return fmt.Sprintf("sample %d (%s): %v", e.Index, e.Where, e.Err)
}

func (e *SampleError) Unwrap() error { return e.Err }
