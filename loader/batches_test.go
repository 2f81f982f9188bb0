package loader_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/source/sourcetest"
)

// For any source of samples, number of goroutines and batches ahead, batches are the same, in the
// order's sequence.
func TestSameBatches(t *testing.T) {
	const samples, size = 97, 8
	orders := []loader.Epochs{nil, shuffled(samples), order.Order{Kind: order.Windows, Seed: 3, Window: 10},
		order.Order{Kind: order.Blocks, Seed: 3, Window: 2, Block: 6}}
	for _, bytes := range []int{1000, 0} {
		for _, there := range []string{"bare source", "cold", "half", "warm", "small"} {
			for w, workers := range []int{1, 2, 5} {
				t.Run(fmt.Sprint(bytes, " ", there, " ", workers), func(t *testing.T) {
					d := newDataset(samples, bytes)
					d.jitter = true
					from := loader.FromSource(d)
					if there != "bare source" {
						slots := samples
						if there == "small" && bytes > 0 {
							slots = samples / 3
						}
						c := newCache(t, d, slots)
						fill(t, c, d, func(i int) bool { return there == "warm" || there == "half" && i%2 == 0 })
						from = cached(t, c, d)
					}
					sequence := orders[(w+len(there))%len(orders)]
					l := open(t, from, loader.Options{BatchSize: size, Order: sequence, Workers: workers, Ahead: 1 + w*2, Threads: w})
					if sequence == nil {
						sequence = order.Order{Samples: samples}
					} else if o := sequence.(order.Order); o.Samples == 0 {
						o.Samples = samples
						sequence = o
					}
					for e := range uint64(3) {
						want, n := wanted(t, sequence, e, order.Shard{}), 0
						fatal.Equal(t, l.Len(), (samples+size-1)/size, "")
						for b, err := range l.Batches(t.Context()) {
							fatal.If(t, err)
							part := want[n:min(n+size, samples)]
							wantBatch(t, d, b, part)
							if n += len(part); b.Epoch() != e || b.Real() != len(part) {
								t.Fatal(b.Epoch(), b.Real())
							}
							b.Release()
						}
						if s := l.State(); n != samples || s.Epoch != e+1 || s.Position != 0 {
							t.Fatal(n, s)
						}
					}
					s := l.Stats()
					hits := map[string]uint64{"bare source": 0, "cold": 2 * samples, "half": 2*samples + samples/2 + 1,
						"warm": 3 * samples, "small": 2 * samples}[there]
					if there == "small" && bytes > 0 {
						hits = 2 * (samples / 3)
					}
					if s.Hits != hits || s.Samples != 3*samples || s.Misses != 3*samples-hits ||
						s.Batches != 3*((samples+size-1)/size) || d.total() != int(s.Misses) {
						t.Errorf("%+v and %d reads, want %d hits", s, d.total(), hits)
					}
				})
			}
		}
	}
}

// The cache counts each sample once: as a hit or as a miss.
func TestCountedOnce(t *testing.T) {
	d := newDataset(50, 100)
	c := newCache(t, d, 50)
	fill(t, c, d, func(i int) bool { return i < 20 })
	readEpoch(t, d, open(t, cached(t, c, d), loader.Options{BatchSize: 7}))
	if s, err := c.Stats(); err != nil || s.Hits != 20 || s.Misses != 30 || s.Stored != 50 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A Load may use the memory that it gets, or its own, to which the loader never writes.
func TestLoadWithMemoryOfItsOwn(t *testing.T) {
	for _, bytes := range []int{100, 0} {
		d := newDataset(200, bytes)
		files := make([][]byte, d.samples)
		for i := range files {
			files[i] = d.want(i)
		}
		c := newCache(t, d, 20)
		l := open(t, loader.FromCache(c, func(_ context.Context, i int, dst []byte) ([]byte, error) {
			if i%3 == 0 {
				return append(dst, d.want(i)...), nil
			}
			return files[i], nil
		}), loader.Options{BatchSize: 6, Order: shuffled(200), Workers: 2})
		for range 2 {
			all := readEpoch(t, d, l)
			slices.Sort(all)
			expect.Equal(t, len(slices.Compact(all)), d.samples, "%v", all)
		}
		for i := range files {
			if string(files[i]) != string(d.want(i)) {
				t.Fatalf("the memory that sample %d came in was written to", i)
			}
		}
	}
}

// A slow sample delays only its own batch. Later samples are loaded in that time, and come in order.
func TestSlowSample(t *testing.T) {
	d := newDataset(32, 10)
	release := d.hold(t, 5) // in batch 1 of 4
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 4, Workers: 2, Ahead: 3})
	var got []int
	go func() {
		defer release()
		fatal.Until(t, "samples after the slow sample are read", func() bool { return d.reads[15].Load() > 0 })
		time.Sleep(20 * time.Millisecond)
		expect.Equal(t, d.reads[16].Load(), 0, "reads of sample 16, which is more than 3 batches after batch 0")
	}()
	for b, err := range l.Batches(t.Context()) {
		fatal.If(t, err)
		if b.Indices()[0] == 4 && d.reads[15].Load() == 0 {
			t.Error("batch 1 came before sample 15 was read: nothing was held up")
		}
		got = append(got, b.Indices()...)
		b.Release()
	}
	for k, i := range got {
		fatal.Equal(t, k, i, "%v", got)
	}
}

// All goroutines load samples of the first batch: no load ends before all 16 have begun.
func TestSideBySide(t *testing.T) {
	d := newDataset(16, 10)
	var begun sync.WaitGroup
	begun.Add(16)
	d.act = func(context.Context, int) {
		begun.Done()
		begun.Wait()
	}
	readEpoch(t, d, open(t, loader.FromSource(d), loader.Options{BatchSize: 16, Workers: 16}))
}

// The loader makes no more ahead than the options allow, in batches and in bytes.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		options loader.Options
		bytes   int
		reads   int // while the caller has the first batch
	}{
		{loader.Options{Ahead: 1}, 100, 2 * 10},
		{loader.Options{Ahead: 5}, 100, 6 * 10},
		{loader.Options{Ahead: 5, AheadBytes: 3999}, 100, 4 * 10},
		{loader.Options{Ahead: 5, AheadBytes: 1}, 100, 2 * 10}, // one batch is always allowed
		{loader.Options{Ahead: 5, AheadBytes: 1}, 0, 2 * 10},
	} {
		d := newDataset(200, c.bytes)
		c.options.BatchSize = 10
		l := open(t, loader.FromSource(d), c.options)
		for b, err := range l.Batches(t.Context()) {
			fatal.If(t, err)
			fatal.Until(t, fmt.Sprint(c, " is read"), func() bool { return d.total() >= c.reads })
			time.Sleep(5 * time.Millisecond)
			expect.Equal(t, d.total(), c.reads, "%+v: reads", c)
			b.Release()
			break
		}
	}
}

// The error is that of the first failed sample in the loader's order, whichever failed first.
// Earlier batches come, and the loader stays at that batch.
func TestErrorNamesTheSample(t *testing.T) {
	for _, workers := range []int{1, 4} {
		d := newDataset(40, 10)
		d.jitter = true
		o := shuffled(40)
		indices := wanted(t, o, 0, order.Shard{})
		for _, position := range []int{13, 14, 17, 30} {
			d.fails[indices[position]] = errRead
		}
		release := d.hold(t, indices[13])
		l := open(t, loader.FromSource(d), loader.Options{BatchSize: 5, Order: o, Workers: workers, Ahead: 4})
		var got []int
		var last error
		for b, err := range l.Batches(t.Context()) {
			if err != nil {
				last = err
				continue
			}
			got = append(got, b.Indices()...)
			time.AfterFunc(5*time.Millisecond, release)
		}
		var failed *loader.SampleError
		if !errors.As(last, &failed) || failed.Index != indices[13] || failed.Position != 3 || !errors.Is(last, errRead) {
			t.Fatalf("%v", last)
		}
		if text := fmt.Sprintf("sample %d (row %d): the disk is on fire", indices[13], indices[13]); last.Error() != text {
			t.Errorf("%q, want %q", last, text)
		}
		if s := l.State(); !slices.Equal(got, indices[:10]) || s.Position != 10 || s.Epoch != 0 {
			t.Errorf("%v, %+v", got, s)
		}
		clear(d.fails)
		expect.Slice(t, readEpoch(t, d, l), indices[10:], "")
	}
}

// A sample of a wrong size is an error with its index, and is not stored.
func TestWrongSize(t *testing.T) {
	d := newDataset(10, 10)
	c := newCache(t, d, 10)
	for _, n := range []int{0, 9, 11} {
		l := open(t, loader.FromCache(c, func(_ context.Context, i int, dst []byte) ([]byte, error) {
			if i == 3 {
				return append(dst, sourcetest.Content(i, n)...), nil
			}
			return append(dst, d.want(i)...), nil
		}), loader.Options{BatchSize: 2})
		var last error
		for b, err := range l.Batches(t.Context()) {
			if last = err; err == nil {
				wantBatch(t, d, b, b.Indices())
			}
		}
		if last == nil || last.Error() != fmt.Sprintf("sample 3: Load returned %d bytes, samples have 10", n) {
			t.Error(last)
		}
		expect.Gives(c.Inspect().State(3))(t, client.StateEmpty)
	}
}

// A panic of Load panics in the loop, with the sample and the stack. If Load ends its goroutine,
// that is an error.
func TestLoadDoesNotReturn(t *testing.T) {
	d := newDataset(20, 10)
	d.act = func(_ context.Context, i int) {
		if i == 7 {
			panic(errRead)
		}
	}
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 4, Workers: 1})
	n := 0
	func() {
		defer func() {
			err, _ := recover().(error)
			var failed *loader.SampleError
			if !errors.As(err, &failed) || failed.Index != 7 || !errors.Is(err, errRead) ||
				!strings.Contains(err.Error(), "TestLoadDoesNotReturn") {
				t.Errorf("%v", err)
			}
		}()
		for b := range l.Batches(t.Context()) {
			n++
			b.Release()
		}
	}()
	if n != 1 || l.State().Position != 4 {
		t.Error(n, l.State())
	}
	d.act = func(_ context.Context, i int) {
		if i == 9 {
			exit()
		}
	}
	var last error
	for b, err := range l.Batches(t.Context()) {
		last = err
		b.Release()
	}
	if last == nil || !strings.Contains(last.Error(), "sample 9 (row 9): Load has ended its goroutine") {
		t.Error(last)
	}
	d.act = nil
	if rest := readEpoch(t, d, l); len(rest) != 12 || rest[0] != 8 {
		t.Error(rest)
	}
}
