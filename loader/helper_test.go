package loader_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"go.uber.org/goleak"
)

// dataset is a source whose reads a test can count, delay and make fail. Sample i has size(i)
// bytes, each of which depends on i.
type dataset struct {
	samples int
	bytes   int // bytes of each sample; 0: sizes differ
	scale   int // the scale of sizes that differ; 0: 1
	latency time.Duration
	jitter  bool // reads end in another order than they begin
	reads   []atomic.Int32

	mu    sync.Mutex
	gates map[int]chan struct{}
	fails map[int]error
	act   func(ctx context.Context, i int) // instead of reading, such as a panic
}

func newDataset(samples, bytes int) *dataset {
	return &dataset{samples: samples, bytes: bytes, reads: make([]atomic.Int32, samples),
		gates: map[int]chan struct{}{}, fails: map[int]error{}}
}

func (d *dataset) size(i int) int {
	if d.bytes > 0 {
		return d.bytes
	}
	return ((i*7919)%200 + i%3) * max(d.scale, 1) // some have none
}

func (d *dataset) want(i int) []byte { return sourcetest.Content(i, d.size(i)) }

func (d *dataset) Info() source.Info {
	field := shm.Field{Name: "data", DType: shm.Uint8, Dims: []uint64{uint64(d.bytes)}}
	if d.bytes == 0 {
		field.Dims[0] = shm.VariableDim
	}
	schema, err := shm.NewSchema([]shm.Field{field}, d.bytes == 0)
	if err != nil {
		panic(err)
	}
	return source.Info{Kind: "test", Samples: d.samples, Schema: schema, Fingerprint: "test-1"}
}

func (d *dataset) Size(i int) (int, error) { return d.size(i), nil }

func (d *dataset) Read(ctx context.Context, i int, dst []byte) (int, error) {
	d.reads[i].Add(1)
	d.mu.Lock()
	gate, failure, act := d.gates[i], d.fails[i], d.act
	d.mu.Unlock()
	if act != nil {
		act(ctx, i)
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	if d.jitter {
		time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
	}
	if d.latency > 0 {
		time.Sleep(d.latency)
	}
	return copy(dst, d.want(i)), failure
}

func (d *dataset) Where(i int) string { return fmt.Sprintf("row %d", i) }
func (d *dataset) Close() error       { return nil }

// hold makes reads of a sample wait until release is called.
func (d *dataset) hold(t *testing.T, i int) (release func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	d.gates[i] = gate
	d.mu.Unlock()
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}

// total returns the number of reads.
func (d *dataset) total() (n int) {
	for k := range d.reads {
		n += int(d.reads[k].Load())
	}
	return n
}

// newCache makes a cache with slots for a dataset.
func newCache(t testing.TB, d *dataset, slots int) *client.Cache {
	t.Helper()
	o := client.Options{Samples: d.samples, SampleBytes: d.bytes, Slots: slots}
	if d.bytes == 0 {
		o = client.Options{Samples: d.samples, Variable: true, Size: 8 << 20}
	}
	c := fatal.Value(client.Create("", o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// fill stores the samples for which there returns true.
func fill(t testing.TB, c *client.Cache, d *dataset, there func(i int) bool) {
	t.Helper()
	for i := range d.samples {
		if there(i) {
			fatal.Value(c.Set(i, d.want(i), 0))(t)
		}
	}
}

// cached returns samples of a cache and a dataset.
func cached(t testing.TB, c *client.Cache, d *dataset) loader.Samples {
	t.Helper()
	from := fatal.Value(loader.FromCacheAndSource(c, d))(t)
	return from
}

// open makes a loader, and checks that its goroutines have ended when the test ends.
func open(t testing.TB, from loader.Samples, o loader.Options) *loader.Loader {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	l := fatal.Value(loader.New(from, o))(t)
	return l
}

// wantBatch checks that the batch has these samples with the right bytes.
func wantBatch(t testing.TB, d *dataset, b loader.Batch, indices []int) {
	t.Helper()
	if !slices.Equal(b.Indices(), indices) || b.Len() != len(indices) {
		t.Fatalf("samples %v, want %v", b.Indices(), indices)
	}
	var rows []byte
	for k, i := range indices {
		if !bytes.Equal(b.Sample(k), d.want(i)) {
			t.Fatalf("sample %d has other bytes (%d of them, want %d)", i, len(b.Sample(k)), d.size(i))
		}
		rows = append(rows, b.Sample(k)...)
	}
	if d.bytes > 0 && !bytes.Equal(b.Data(), rows) || d.bytes == 0 && b.Data() != nil {
		t.Fatal("the rows are not the samples")
	}
}

// readEpoch reads the rest of an epoch and returns the indices.
func readEpoch(t testing.TB, d *dataset, l *loader.Loader) (indices []int) {
	t.Helper()
	for b, err := range l.Batches(context.Background()) {
		fatal.If(t, err)
		wantBatch(t, d, b, slices.Clone(b.Indices()))
		indices = append(indices, b.Indices()...)
		b.Release()
	}
	return indices
}

// wanted returns the samples that a rank reads in an epoch.
func wanted(t testing.TB, o loader.Epochs, number uint64, s order.Shard) []int {
	t.Helper()
	e := fatal.Value(o.Epoch(number))(t)
	p := fatal.Value(s.Of(e))(t)
	indices := make([]int, p.Samples())
	p.Fill(indices, 0)
	return indices
}

func shuffled(samples int) order.Order {
	return order.Order{Samples: uint64(samples), Kind: order.Shuffled, Seed: 7}
}

var errRead = errors.New("the disk is on fire")
