package loader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/source"
)

// Samples says where a Loader gets samples from: FromSource, FromCache or FromServer make it. The
// caller keeps the cache or source, which MUST outlive the loops over batches.
type Samples struct {
	samples  int
	bytes    int // bytes of each sample; unused if variable
	variable bool

	cache *client.Cache           // nil: none
	load  Load                    // loads a miss; nil: the server does
	fetch *client.Served          // fills the cache; nil: use load
	where func(i int) string      // says where a sample comes from, for messages; nil: unknown
	ahead func(indices []int) int // reads the samples ahead that will be loaded next; may be nil
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
func FromCache(c *client.Cache, load Load) Samples {
	info := c.Info()
	return Samples{samples: info.Samples, bytes: info.SampleBytes, variable: info.Variable, cache: c, load: load}
}

// FromCacheAndSource is FromCache with a source to load from. It returns ErrInvalid if the samples
// of the two do not match.
func FromCacheAndSource(c *client.Cache, s source.Source) (Samples, error) {
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
func FromServer(s *client.Served) Samples {
	from := FromCache(s.Cache, nil)
	from.fetch = s
	return from
}

// FromPrograms takes samples from a served cache of Programs: it asks the server for what other programs and machines
// have, loads the other misses, and offers them.
func FromPrograms(s *client.Served, load Load) Samples {
	return FromCache(s.Cache, func(ctx context.Context, i int, dst []byte) ([]byte, error) {
		return s.AskOrLoad(ctx, i, func(ctx context.Context) ([]byte, error) { return load(ctx, i, dst) })
	})
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

// loads returns Load, and what it cost if the cache wants to know; else 0. A sample from a disk cache is not loaded.
func (s *Samples) loads(ctx context.Context, i int, dst []byte) (data []byte, took time.Duration, err error) {
	if s.cache == nil {
		data, err = s.load(ctx, i, dst)
		return data, 0, err
	}
	loads := s.cache.Loads()
	if data, hit := loads.FromDisk(i, dst); hit {
		return data, 0, nil
	}
	cost := loadtime.MeasureIf(loads.MeasureNext(), ctx, func(ctx context.Context) { data, err = s.load(ctx, i, dst) })
	return data, cost.All, err
}

// store stores a loaded sample. A full or read-only cache is no error.
func (s *Samples) store(i int, data []byte, took time.Duration) error {
	if s.cache == nil {
		return nil
	}
	_, err := s.cache.SetParts(i, [][]byte{data}, 0, took)
	if err == nil {
		s.cache.Loads().ToDisk(i, data)
	}
	if errors.Is(err, client.ErrReadOnly) {
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
