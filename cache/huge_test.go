package cache_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/hugepage"
	"github.com/stocached/stocached/shm"
)

// hugeKinds are caches of 16 MiB and a little more, whose samples lie in blocks in all ways: many
// in one, several in one, across the borders of several.
var hugeKinds = map[string]shm.Options{
	"slots":         {Samples: 5500, SampleBytes: 3072},
	"large slots":   {Samples: 4, SampleBytes: 5 << 20},
	"first indices": {Samples: 50, Slots: 40, SampleBytes: 500_000, Policy: shm.PolicyFirstIndices},
	"arena":         {Samples: 60, SampleBytes: 600_000, Variable: true, Limit: 20 << 20},
}

// lengthOf returns the length of a sample in one of those.
func lengthOf(o shm.Options, i int) int {
	if o.Variable {
		return int(o.SampleBytes) - 1000*i
	}
	return int(o.SampleBytes)
}

// fillAll sets all samples from the last to the first, so that with first indices the block of a
// place holds others already, and claims each third. It returns which were stored.
func fillAll(t *testing.T, c *cache.Cache, o shm.Options, version int, flags cache.Flags) (stored []int) {
	t.Helper()
	for i := c.Samples() - 1; i >= 0; i-- {
		data := payload(i, version, lengthOf(o, i))
		if i%3 != 0 {
			r, err := c.Set(i, data, flags)
			if err != nil {
				t.Fatalf("set %d: %v", i, err)
			}
			if r == cache.Stored {
				stored = append(stored, i)
			}
			continue
		}
		k, r, err := c.Claim(i, len(data), flags)
		if err != nil {
			t.Fatalf("claim %d: %v", i, err)
		}
		if r == cache.Stored {
			fatal.Value(k.WriteAt(data, 0))(t)
			fatal.If(t, k.Publish())
			stored = append(stored, i)
		}
	}
	return stored
}

// another attaches to a segment until the test ends.
func another(t *testing.T, seg *shm.Segment, o shm.OpenOptions) *shm.Segment {
	t.Helper()
	other := fatal.Value(shm.OpenFD(seg.FD(), o))(t)
	t.Cleanup(func() { other.Close() })
	return other
}

// hugeBytes returns how much of a segment's payload is mapped as huge pages, and how much may be:
// whole blocks, but in an arena only those in which an extent begins or ends.
func hugeBytes(t *testing.T, seg *shm.Segment, c *cache.Cache) (got, want uint64) {
	t.Helper()
	got = fatal.Value(hugepage.Mapped(seg.Bytes(0, seg.PayloadBytes)))(t)
	want = seg.PayloadBytes / hugepage.Bytes * hugepage.Bytes
	if seg.Variable() {
		want = min(want, (stats(t, c).ArenaNextBytes+hugepage.Bytes-1)/hugepage.Bytes*hugepage.Bytes)
	}
	return got, want
}

// Fills use huge pages, for the client that fills and for others. Overwrites leave pages as they
// are. If the kernel refuses huge pages, all works the same with small ones.
func TestFillsTakeHugePages(t *testing.T) {
	for name, o := range hugeKinds {
		t.Run(name, func(t *testing.T) {
			hugepage.Need(t)
			hugepage.Try(t, int(o.SampleBytes*o.Samples/hugepage.Bytes)+1, func() error {
				seg := mapped(t, o)
				c := attach(t, seg)
				other := another(t, seg, shm.OpenOptions{ReadOnly: true})
				reader := attach(t, other)
				stored := fillAll(t, c, o, 0, 0)
				if len(stored) < min(c.Samples(), 27) {
					t.Fatalf("only %d samples of %d are stored", len(stored), c.Samples())
				}
				for _, i := range stored {
					wantSample(t, reader, i, payload(i, 0, lengthOf(o, i)))
				}
				got, want := hugeBytes(t, seg, c)
				if theirs, _ := hugeBytes(t, other, c); theirs != want || got != want || want < 16<<20 {
					return fmt.Errorf("%d bytes are huge, and %d for another attachment, of %d; want %d", got, theirs,
						seg.PayloadBytes, want)
				}
				return nil
			})
		})
		t.Run(name+", refused", func(t *testing.T) {
			seg := mapped(t, o)
			small := attach(t, seg)
			var stored []int
			t.Run("fill", func(t *testing.T) {
				hugepage.Refuse(t)
				stored = fillAll(t, small, o, 0, 0)
				if got, want := hugeBytes(t, seg, small); got != 0 || want < 16<<20 {
					t.Errorf("%d bytes of %d are huge", got, want)
				}
			})
			if len(stored) < min(small.Samples(), 27) {
				t.Fatalf("only %d samples of %d are stored", len(stored), small.Samples())
			}
			again := another(t, seg, shm.OpenOptions{}) // which would ask again
			c := attach(t, again)
			for _, i := range stored {
				wantSample(t, c, i, payload(i, 0, lengthOf(o, i)))
			}
			if overwritten := fillAll(t, c, o, 1, cache.Overwrite); len(overwritten) != len(stored) {
				t.Errorf("%d samples were stored, then %d overwritten", len(stored), len(overwritten))
			}
			if got, _ := hugeBytes(t, again, c); got != 0 {
				t.Errorf("overwriting made %d bytes huge", got)
			}
			for _, i := range stored {
				wantSample(t, small, i, payload(i, 1, lengthOf(o, i)))
			}
			fatal.Gives(c.Clear(context.Background()))(t, cache.Stored)
			fillAll(t, c, o, 2, 0)
			for _, i := range stored {
				wantSample(t, small, i, payload(i, 2, lengthOf(o, i)))
			}
			checkSound(t, seg)
		})
	}
}
