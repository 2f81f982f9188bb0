package loader_test

import (
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
)

// A batch that is kept never changes while other batches are made and released.
func TestKeptBatches(t *testing.T) {
	for _, bytes := range []int{300, 0} {
		d := newDataset(90, bytes)
		d.jitter = true
		c := newCache(t, d, 90)
		fill(t, c, d, func(i int) bool { return i%2 == 0 })
		l := open(t, cached(t, c, d), loader.Options{BatchSize: 6, Order: shuffled(90)})
		sum := func(b loader.Batch) (sum uint32) {
			for k := range b.Len() {
				sum = crc32.Update(sum, crc32.IEEETable, b.Sample(k))
			}
			return sum
		}
		type keep struct {
			batch   loader.Batch
			sum     uint32
			indices []int
		}
		var kept []keep
		n := 0
		for range 6 { // epochs
			for b, err := range l.Batches(t.Context()) {
				fatal.If(t, err)
				if n++; n%3 == 0 {
					kept = append(kept, keep{b, sum(b), slices.Clone(b.Indices())})
					continue
				}
				b.Release()
			}
		}
		for _, k := range kept {
			wantBatch(t, d, k.batch, k.indices)
			fatal.Equal(t, sum(k.batch), k.sum, "a batch that was kept")
			k.batch.Release() // a late release is allowed
		}
		readEpoch(t, d, l)
	}
}

// panics returns what a function panics with.
func panics(f func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = p.(string)
		}
	}()
	f()
	return ""
}

// A second release does nothing, even if another batch has the memory. All other calls of a
// released batch panic with the reason.
func TestReleased(t *testing.T) {
	d := newDataset(40, 10)
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 4, Ahead: 1})
	var old loader.Batch
	var places []uintptr
	for b, err := range l.Batches(t.Context()) {
		fatal.If(t, err)
		again := b // the same batch
		want := slices.Clone(b.Indices())
		if len(places) > 0 {
			old.Release() // another batch may have its memory
		}
		wantBatch(t, d, b, want)
		places = append(places, uintptr(unsafe.Pointer(&b.Data()[0])))
		b.Release()
		again.Release()
		for what, use := range map[string]func(){"Len": func() { b.Len() }, "Indices": func() { again.Indices() },
			"Data": func() { b.Data() }, "Sample": func() { again.Sample(0) },
			"Hits": func() { b.Hits() }, "Real": func() { b.Real() }, "Epoch": func() { b.Epoch() }} {
			expect.Equal(t, panics(use), "loader: use of a batch after its Release", "%s", what)
		}
		old = b
	}
	if slices.Sort(places); len(slices.Compact(places)) > 3 { // the one ahead, the caller's, the previous one
		t.Errorf("%d buffers for %d batches", len(slices.Compact(places)), len(places))
	}
	expect.Says(t, panics(func() { loader.Batch{}.Len() }), "check the error")
	loader.Batch{}.Release()
	batch := loader.Batch{}
	for b, err := range l.Batches(t.Context()) {
		if batch = b; err != nil {
			t.Fatal(err)
		}
		break
	}
	expect.Says(t, panics(func() { batch.Sample(4) }), "sample 4 of a batch of 4")
}

// Other goroutines may use and release batches, also twice at the same time, during the loop and
// after it.
func TestReleaseElsewhere(t *testing.T) {
	d := newDataset(400, 64)
	c := newCache(t, d, 400)
	l := open(t, cached(t, c, d), loader.Options{BatchSize: 5, Order: shuffled(400)})
	var others sync.WaitGroup
	for range 3 {
		for b, err := range l.Batches(t.Context()) {
			fatal.If(t, err)
			indices := slices.Clone(b.Indices())
			others.Go(func() {
				for k, i := range indices {
					if string(b.Sample(k)) != string(d.want(i)) {
						t.Errorf("sample %d has other bytes", i)
					}
				}
				var twice sync.WaitGroup
				for range 2 {
					twice.Go(b.Release)
				}
				twice.Wait()
			})
		}
	}
	others.Wait()
	readEpoch(t, d, l)
}
