package wrap

import (
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"
)

// options are the keys of a cache's settings for Apply. A missing key adds no wrapper.
type options struct {
	Limits    map[string]any `key:"limits"`
	Retry     map[string]any `key:"retry"`
	ReadAhead map[string]any `key:"read_ahead"`
}

// limits: {concurrency: 16, bytes_per_second: 150MB, latency: 8ms, heads: 1}
type limits struct {
	Concurrency    *int          `key:"concurrency"` // Concurrency
	BytesPerSecond size.Bytes    `key:"bytes_per_second"`
	Latency        time.Duration `key:"latency"`
	Heads          int           `key:"heads"`
}

// Apply wraps s as settings say, in this order from the source on: rate, concurrency, retry,
// read-ahead. Keys:
//
//	limits:     {concurrency: 16, bytes_per_second: 150MB, latency: 8ms, heads: 1}   Concurrency and RateOptions; all optional
//	retry:      {tries: 5, seconds: 30}                                              RetryOptions; {} means the defaults
//	read_ahead: {size: 64MiB, readers: 4, blocks: false, keep: 1m}                   ReadAheadOptions; the result is an Ahead
//
// told is that of Retry. A missing key adds no wrapper (package kinds adds retry: {tries: 50} for addresses); without keys the result is s. It returns
// ErrInvalid, with the key, for unknown keys and invalid values. Then s stays open, and the caller owns it.
func Apply(s source.Source, settings map[string]any, told *source.Retries) (source.Source, error) {
	var o options
	if err := source.Settings(settings).Decode(&o); err != nil {
		return nil, err
	}
	if o.ReadAhead != nil {
		if joined, ok := source.ByBlock(s); ok {
			s = joined
		}
	}
	retry := func(s source.Source, o *options) (source.Source, error) { return applyRetry(s, o, told) }
	for _, apply := range []func(source.Source, *options) (source.Source, error){applyLimits, retry, applyReadAhead} {
		var err error
		if s, err = apply(s, &o); err != nil {
			return nil, err // only the last wrapper starts goroutines, so none must be stopped
		}
	}
	return s, nil
}

func applyLimits(s source.Source, o *options) (source.Source, error) {
	if o.Limits == nil {
		return s, nil
	}
	var l limits
	err := errors.Join(source.Settings(o.Limits).Decode(&l),
		source.Settings(o.Limits).NotZero("bytes_per_second", "heads"))
	if rate := (RateOptions{l.BytesPerSecond, l.Latency, l.Heads}); err == nil && rate != (RateOptions{}) {
		s, err = Rate(s, rate)
	}
	if err == nil && l.Concurrency != nil {
		s, err = Concurrency(s, *l.Concurrency)
	}
	return s, in("limits", err)
}

func applyRetry(s source.Source, o *options, told *source.Retries) (source.Source, error) {
	if o.Retry == nil {
		return s, nil
	}
	var r RetryOptions
	err := errors.Join(source.Settings(o.Retry).Decode(&r), source.Settings(o.Retry).NotZero("tries", "seconds"))
	if err == nil {
		s, err = Retry(s, r, told)
	}
	return s, in("retry", err)
}

func applyReadAhead(s source.Source, o *options) (source.Source, error) {
	if o.ReadAhead == nil {
		return s, nil
	}
	var r ReadAheadOptions
	err := errors.Join(source.Settings(o.ReadAhead).Decode(&r), source.Settings(o.ReadAhead).NotZero("size", "readers", "total"))
	if _, has := s.(source.Blocks); err == nil && r.Blocks && !has {
		err = fmt.Errorf("%w: blocks: this source has none; leave it out, or pack the samples into block files (stocached pack)",
			source.ErrInvalid)
	}
	if err == nil {
		s, err = ReadAhead(s, r)
	}
	return s, in("read_ahead", err)
}

// in adds the key to an error.
func in(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", key, err)
}
