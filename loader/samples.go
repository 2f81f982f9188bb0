package loader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Samples says where a Loader gets samples from: FromSource, FromCache or FromServer make it. The
// caller keeps the cache or source, which MUST outlive the loops over batches.
type Samples struct {
	samples  int
	bytes    int // bytes of each sample; unused if variable
	variable bool

	cache Cache                   // nil: none
	load  Load                    // loads a miss; nil: use fetch
	fetch Fetcher                 // nil: use load
	where func(i int) string      // says where a sample comes from, for messages; nil: unknown
	ahead func(indices []int) int // reads the samples ahead that will be loaded next; may be nil
}

// Cache is a cache of samples, such as a *client.Cache. Its methods are those of that type. If it also
// has the methods MeasureNext and SetLoaded of that type, the loader tells it what loads cost. With FromDisk and
// ToDisk the loader uses its disk cache.
type Cache interface {
	Samples() int
	SampleBytes() int
	Variable() bool
	Gather(indices []int, dst []byte, o cache.GatherOptions) (int, error)
	Lengths(indices []int, lengths []uint64) (int, error)
	GatherPacked(indices []int, dst []byte, offsets, lengths []uint64, hit []bool, threads int) (int, error)
	Set(i int, data []byte, flags cache.Flags) (cache.Result, error)
}

// Fetcher is a cache that a server fills, such as a *client.Served.
type Fetcher interface {
	Cache
	// FetchMisses asks the server for samples that are not in the cache. place returns the memory
	// for the n bytes of indices[k]. Several goroutines may call it, and more than once for a
	// sample.
	FetchMisses(ctx context.Context, indices []int, place func(k, n int) []byte) error
}

// Load appends sample i to dst and returns the result, like the functions of package strconv. dst
// is the memory of a batch; if all samples have one size, it has capacity for one. Load may also
// return memory of its own, which the loader copies at once and never writes to. Several goroutines
// call Load. It MUST NOT keep dst. It MUST return soon after the end of ctx, because the end of a
// loop over batches waits for it.
type Load func(ctx context.Context, i int, dst []byte) ([]byte, error)

// FromSource reads all samples from a source.
func FromSource(s source.Source) Samples {
	info := s.Info()
	from := Samples{samples: info.Samples, bytes: int(info.Schema.SampleBytes), variable: info.Schema.Variable,
		load: read(s), where: s.Where}
	if ahead, ok := s.(interface{ Prefetch(indices []int) int }); ok { // wrap.Ahead
		from.ahead = ahead.Prefetch
	}
	return from
}

// FromCache takes samples from a cache, and loads and stores the misses. A full cache is no error.
// Other processes that miss a sample at the same time load it too; the cache keeps the
// first result.
func FromCache(c Cache, load Load) Samples {
	return Samples{samples: c.Samples(), bytes: c.SampleBytes(), variable: c.Variable(), cache: c, load: shared(c, load)}
}

// shared returns a Load that asks the server of a cache of programs first, and offers it what load gives.
func shared(c Cache, load Load) Load {
	s, ok := c.(interface {
		Programs() bool
		AskOrLoad(ctx context.Context, i int, load func(ctx context.Context) ([]byte, error)) ([]byte, error)
	})
	if !ok || !s.Programs() {
		return load
	}
	return func(ctx context.Context, i int, dst []byte) ([]byte, error) {
		return s.AskOrLoad(ctx, i, func(ctx context.Context) ([]byte, error) { return load(ctx, i, dst) })
	}
}

// FromCacheAndSource is FromCache with a source to load from. It returns ErrInvalid if the samples
// of the two do not match.
func FromCacheAndSource(c Cache, s source.Source) (Samples, error) {
	from, other := FromCache(c, read(s)), FromSource(s)
	from.where, from.ahead = other.where, other.ahead
	switch {
	case from.samples != other.samples:
		return from, fmt.Errorf("%w: the cache has %d samples, the source has %d; make a cache for this source",
			order.ErrInvalid, from.samples, other.samples)
	case from.variable != other.variable:
		return from, fmt.Errorf("%w: only one of cache and source has samples that differ in size; "+
			"make a cache for this source",
			order.ErrInvalid)
	case !from.variable && from.bytes != other.bytes:
		return from, fmt.Errorf("%w: samples of the cache have %d bytes, those of the source have %d; "+
			"make a cache for this source",
			order.ErrInvalid, from.bytes, other.bytes)
	}
	return from, nil
}

// FromServer takes samples from a cache that a server fills, and asks the server for the misses of
// each batch in one request.
func FromServer(c Fetcher) Samples {
	return Samples{samples: c.Samples(), bytes: c.SampleBytes(), variable: c.Variable(), cache: c, fetch: c}
}

// read returns a Load that reads from a source.
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

// measured is a Cache that wants to know what loads took.
type measured interface {
	MeasureNext() bool
	SetLoaded(i int, parts [][]byte, flags cache.Flags, took time.Duration) (cache.Result, error)
}

// backed is a Cache that may use a disk cache, such as a *client.Cache.
type backed interface {
	FromDisk(i int, dst []byte) ([]byte, bool)
	ToDisk(i int, data []byte)
}

// loads returns Load, and what it cost if the cache wants to know; else 0. A sample from a disk cache is not loaded.
func (s *Samples) loads(ctx context.Context, i int, dst []byte) (data []byte, took time.Duration, err error) {
	if b, ok := s.cache.(backed); ok {
		if data, hit := b.FromDisk(i, dst); hit {
			return data, 0, nil
		}
	}
	c, ok := s.cache.(measured)
	cost := loadtime.MeasureIf(ok && c.MeasureNext(), ctx, func(ctx context.Context) { data, err = s.load(ctx, i, dst) })
	return data, cost.All, err
}

// store stores a loaded sample. A full or read-only cache is no error.
func (s *Samples) store(i int, data []byte, took time.Duration) (err error) {
	if s.cache == nil {
		return nil
	}
	if took > 0 {
		_, err = s.cache.(measured).SetLoaded(i, [][]byte{data}, 0, took)
	} else {
		_, err = s.cache.Set(i, data, 0)
	}
	if b, ok := s.cache.(backed); ok && err == nil {
		b.ToDisk(i, data)
	}
	if errors.Is(err, shm.ErrReadOnly) {
		return nil
	}
	return err
}

// check returns ErrInvalid if nothing can load samples.
func (s *Samples) check() error {
	if s.load == nil && s.fetch == nil {
		return fmt.Errorf("%w: no source of samples; use FromSource, FromCache or FromServer", order.ErrInvalid)
	}
	return nil
}

// SampleError is the error of a sample that could not be loaded: the first such sample in the
// loader's order.
type SampleError struct {
	Index    int
	Position uint64 // in the batch
	Where    string // where the sample comes from; "" if unknown
	Err      error  // error of Load or the source
}

func (e *SampleError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("sample %d: %v", e.Index, e.Err)
	}
	return fmt.Sprintf("sample %d (%s): %v", e.Index, e.Where, e.Err)
}

func (e *SampleError) Unwrap() error { return e.Err }
