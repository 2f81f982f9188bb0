package wrap

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"
)

// ReadAheadOptions bound what is read ahead.
type ReadAheadOptions struct {
	// Size bounds the bytes of samples that are held or read ahead. 0: 64 MiB. Garbage comes on
	// top.
	Size size.Bytes `key:"size"`
	// Total bounds the bytes of all sources of this process that have it, but each may hold one sample or block.
	// 0: there is no such bound.
	Total   size.Bytes `key:"total"`
	Readers int        `key:"readers"` // concurrent reads ahead. 0: 4
	// Blocks reads the whole block of any sample, and holds it: for readers that read block by block.
	Blocks bool          `key:"blocks"`
	Keep   time.Duration `key:"keep"` // samples that no reader asks for in this time may be dropped. 0: 1 min
}

// sharing are the sources with Total, and together their bytes.
var (
	sharing  sync.Map
	together atomic.Int64
)

// togetherPause is how often a source asks whether others have freed bytes.
const togetherPause = 100 * time.Millisecond

// maxAnnounced bounds the memory of announced samples that are not read yet: 64 batches of 1,024.
const maxAnnounced = 1 << 16

// Ahead is a source that reads ahead. Around a source.Blocks it is a source.Blocks too, and reads
// ahead block by block.
type Ahead interface {
	source.Source
	// Prefetch announces reads. The source reads these samples ahead in this order, each once, and
	// holds each until it is read once. It reads whole blocks if all of them fit, and where a call
	// announces most of a block, or samples that lie side by side. Prefetch does not wait. It returns how many of the indices
	// are announced now. The others are invalid, exceed the queue (65,536 samples or blocks), or
	// are larger than Size.
	Prefetch(indices []int) int
	// Whole says whether a Read of a sample that was not announced reads its whole block.
	Whole() bool
	// Held returns the bytes of samples that are held or read ahead.
	Held() int64
}

// ReadAhead reads announced samples early. A Read takes its sample from those that are held, waits
// for it if it is being read, or else reads it from the source. An error of a read ahead is
// ignored: the Read of the sample tries again and returns its own error. It returns ErrInvalid for
// negative options.
func ReadAhead(s source.Source, o ReadAheadOptions) (Ahead, error) {
	if o.Size < 0 || o.Total < 0 || o.Readers < 0 || o.Readers > 1024 || o.Keep < 0 {
		return nil, fmt.Errorf("%w: size: %d bytes, total: %d bytes, readers: %d, keep: %v: none may be below 0, "+
			"and at most 1024 readers are allowed",
			source.ErrInvalid, o.Size, o.Total, o.Readers, o.Keep)
	}
	o.Size, o.Readers, o.Keep = cmp.Or(o.Size, 64<<20), cmp.Or(o.Readers, 4), cmp.Or(o.Keep, time.Minute)
	a := &ahead{Source: s, o: o, samples: s.Info().Samples, units: map[int]*unit{}}
	a.blocks, _ = s.(source.Blocks)
	a.ctx, a.stop = context.WithCancelCause(context.Background())
	a.changed.L = &a.mu
	a.measured.Store(true)
	if o.Total > 0 {
		sharing.Store(a, nil)
	}
	for range o.Readers {
		a.readers.Go(a.readAhead)
	}
	if a.blocks != nil {
		return aheadBlocks{a, a.blocks}, nil
	}
	return a, nil
}

type ahead struct {
	source.Source
	blocks   source.Blocks // nil: none
	o        ReadAheadOptions
	samples  int
	ctx      context.Context // ended by Close
	stop     context.CancelCauseFunc
	readers  sync.WaitGroup
	measured atomic.Bool // the last Read was measured, so the next one may be

	mu      sync.Mutex    // protects the fields below, and the fields of units that say so
	changed sync.Cond     // a sample was announced, bytes became free, or the source was closed
	units   map[int]*unit // announced, being read, and held; by number
	before  int           // the sample that was announced last
	queue   list.List     // announced units, in their order
	held    list.List     // units that are read, the one untouched for longest first
	bytes   int64         // bytes of units that are being read or held
	closed  bool
	last    struct {
		cost  loadtime.Cost
		bytes int // 0: none
	} // unit that was measured
}

// unit is what one read of the source returns: a sample, or a block.
type unit struct {
	number   int           // the number of a block, or that of single
	first, n int           // its samples
	bytes    int64         // bytes of these samples
	done     chan struct{} // closed after the read

	data []byte        // written by its reader until done, then constant
	ends []int         // ends in data of the samples that could be read
	cost loadtime.Cost // cost of the read, as package loadtime measures it; 0: it was not measured

	// Protected by the mutex:
	place   *list.Element // in queue or held; nil: it is being read
	queued  bool
	wanted  []want // who wants each sample
	rest    int    // samples that are not read yet; a unit without any is dropped
	left    int    // announced ones of these; without any, others may have the space
	touched time.Time
}

// want says who waits for a sample.
type want uint8

const (
	isRead want = iota
	notAnnounced
	isAnnounced
)

// want notes that sample i is not read yet, and whether it is announced.
func (u *unit) want(i int, how want) {
	u.unwant(i)
	u.wanted[i-u.first] = how
	if u.rest++; how == isAnnounced {
		u.left++
	}
}

// sample returns the bytes of sample i. ok is false if the read of the sample failed.
func (u *unit) sample(i int) (data []byte, ok bool) {
	k := i - u.first
	if k >= len(u.ends) {
		return nil, false
	}
	begin := 0
	if k > 0 {
		begin = u.ends[k-1]
	}
	return u.data[begin:u.ends[k]], true
}

// unwant notes that sample i is no longer wanted.
func (u *unit) unwant(i int) {
	was := &u.wanted[i-u.first]
	if *was == isAnnounced {
		u.left--
	}
	if *was != isRead {
		u.rest--
	}
	*was = isRead
}

func (a *ahead) number(i int) int {
	if a.blocks != nil {
		return a.blocks.BlockOf(i)
	}
	return i
}

// single returns the number of the unit that is sample i alone.
func (a *ahead) single(i int) int {
	if a.blocks != nil {
		return -1 - i
	}
	return i
}

// unit returns the unit of a number, and locks the mutex. A fresh unit is not in the map yet. It
// is nil when the source has no such samples.
func (a *ahead) unit(number int) (u *unit, fresh bool) {
	a.mu.Lock()
	if u = a.units[number]; u != nil {
		return u, false
	}
	a.mu.Unlock() // Size may ask the file system
	u = a.measure(number)
	a.mu.Lock()
	if now := a.units[number]; now != nil {
		return now, false
	}
	return u, true
}

func (a *ahead) measure(number int) *unit {
	u := &unit{number: number, first: number, n: 1, done: make(chan struct{})}
	if number < 0 {
		u.first = -1 - number
	} else if a.blocks != nil {
		u.first, u.n = a.blocks.Block(number)
	}
	for i := u.first; i < u.first+u.n; i++ {
		n, err := a.Size(i)
		if err != nil {
			return nil
		}
		u.bytes += int64(n)
	}
	if u.n == 0 || u.bytes > int64(a.o.Size) {
		return nil
	}
	u.wanted = make([]want, u.n)
	return u
}

func (a *ahead) Prefetch(indices []int) (announced int) {
	whole := a.wholeOf(indices)
	for _, i := range indices {
		if i >= 0 && i < a.samples && a.announce(i, whole(i)) {
			announced++
		}
	}
	return announced
}

// nextTo is how far apart samples side by side may be: ranks read every so manieth sample.
const nextTo = 16

// wholeOf says of which of these samples the whole block is worth a read.
func (a *ahead) wholeOf(indices []int) func(i int) bool {
	if a.blocks == nil || a.o.Blocks || a.blocks.Blocks() <= int(a.o.Size/source.MostBlock) { // they all fit
		return func(int) bool { return a.blocks != nil }
	}
	near := 0
	a.mu.Lock()
	for _, i := range indices {
		if i > a.before && i <= a.before+nextTo {
			near++
		}
		a.before = i
	}
	a.mu.Unlock()
	if 2*near >= len(indices) {
		return func(int) bool { return true }
	}
	announced := map[int]int{}
	for _, i := range indices {
		announced[a.number(i)]++
	}
	return func(i int) bool {
		_, n := a.blocks.Block(a.number(i))
		return 2*announced[a.number(i)] >= n
	}
}

func (a *ahead) announce(i int, whole bool) bool {
	number := a.number(i)
	if !whole { // a block may have millions of samples to measure
		a.mu.Lock()
		if a.units[number] == nil {
			number = a.single(i)
		}
		a.mu.Unlock()
	}
	u, fresh := a.unit(number)
	if fresh && u == nil {
		a.mu.Unlock()
		u, fresh = a.unit(a.single(i))
	}
	defer a.mu.Unlock()
	if u == nil || a.closed || fresh && a.queue.Len() >= maxAnnounced {
		return false
	}
	if fresh {
		for k := range u.n {
			u.want(u.first+k, notAnnounced)
		}
		u.queued, u.place = true, a.queue.PushBack(u)
		a.units[u.number] = u
		a.changed.Broadcast()
	} else if u.left == 0 && !u.queued && u.place != nil {
		u.touched = time.Now()
		a.held.MoveToBack(u.place)
	}
	u.want(i, isAnnounced)
	return true
}

// readAhead reads announced units, in its own goroutine.
func (a *ahead) readAhead() {
	for {
		u := a.next()
		if u == nil {
			return
		}
		a.read(a.ctx, u, a.measured.Load())
	}
}

// next waits until a unit is announced and its bytes are free. It returns nil after Close.
func (a *ahead) next() *unit {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.closed {
		front := a.queue.Front()
		if front == nil {
			a.changed.Wait()
			continue
		}
		u := front.Value.(*unit)
		if wait, ok := a.makeSpace(u.bytes, a.o.Keep); !ok {
			timer := time.AfterFunc(wait, a.changed.Signal)
			a.changed.Wait()
			timer.Stop()
			continue
		}
		a.begin(u)
		return u
	}
	return nil
}

// makeSpace drops units that were untouched for long enough, until bytes are free. If too few are
// free, wait says when that may change.
func (a *ahead) makeSpace(bytes int64, untouched time.Duration) (wait time.Duration, ok bool) {
	for {
		others := a.o.Total > 0 && a.bytes > 0 && together.Load()+bytes > int64(a.o.Total)
		if !others && a.bytes+bytes <= int64(a.o.Size) {
			return 0, true
		}
		oldest := a.held.Front()
		if oldest != nil && time.Since(oldest.Value.(*unit).touched) >= untouched {
			a.drop(oldest.Value.(*unit))
			continue
		}
		if wait = a.o.Keep; oldest != nil {
			wait = untouched - time.Since(oldest.Value.(*unit).touched)
		}
		if !others {
			return wait, false
		}
		before := together.Load()
		sharing.Range(func(other, _ any) bool { other.(*ahead).expire(a); return true })
		if together.Load() >= before {
			return min(wait, togetherPause), false
		}
	}
}

// expire drops units that were untouched for long enough, for another source. That holds its own lock, so expire waits for none.
func (a *ahead) expire(by *ahead) {
	if a == by || !a.mu.TryLock() {
		return
	}
	defer a.mu.Unlock()
	for oldest := a.held.Front(); oldest != nil && time.Since(oldest.Value.(*unit).touched) >= a.o.Keep; oldest = a.held.Front() {
		a.drop(oldest.Value.(*unit))
	}
}

// account counts bytes that are read or held from now on.
func (a *ahead) account(bytes int64) {
	if a.bytes += bytes; a.o.Total > 0 {
		together.Add(bytes)
	}
}

// begin marks a unit as being read.
func (a *ahead) begin(u *unit) {
	if u.queued {
		a.queue.Remove(u.place)
		u.queued = false
	}
	u.place = nil
	a.account(u.bytes)
}

// drop removes a unit that is held or announced.
func (a *ahead) drop(u *unit) {
	if u.queued {
		a.queue.Remove(u.place)
	} else {
		a.held.Remove(u.place)
		a.account(-u.bytes)
	}
	delete(a.units, u.number)
	a.changed.Broadcast()
}

// read reads a unit and holds the result. A measurement of a wait keeps a thread, so it takes a quarter of the processor
// time of a read from a network.
func (a *ahead) read(ctx context.Context, u *unit, measure bool) {
	defer close(u.done)
	data, ends := make([]byte, 0, u.bytes), make([]int, 0, u.n)
	u.cost = loadtime.MeasureIf(measure, ctx, func(ctx context.Context) {
		if u.number == a.single(u.first) {
			if n, err := a.Source.Read(ctx, u.first, data[:u.bytes]); err == nil {
				data, ends = data[:n], append(ends, n)
			}
			return
		}
		// Ignore the error: the Read of a missing sample reads it from the source.
		_ = a.blocks.ReadBlock(ctx, u.number, func(i int, sample []byte) error {
			if i != u.first+len(ends) || len(data)+len(sample) > cap(data) {
				return fmt.Errorf("%w: sample %d of block %d is not the announced one", source.ErrCorrupt, i, u.number)
			}
			data = append(data, sample...)
			ends = append(ends, len(data))
			return nil
		})
	})
	u.data, u.ends = data, ends
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := len(ends); k < u.n; k++ {
		u.unwant(u.first + k)
	}
	if measure && len(data) > 0 {
		a.last.cost, a.last.bytes = u.cost, len(data)
	}
	u.touched = time.Now()
	u.place = a.held.PushBack(u)
	if a.closed {
		a.drop(u)
	} else {
		a.leave(u)
	}
}

// leave drops a unit if all of its samples are read. If no reader has announced the samples that are left, other units may
// take the space.
func (a *ahead) leave(u *unit) {
	switch {
	case a.units[u.number] != u || u.place == nil:
	case u.rest == 0 || u.left == 0 && u.queued:
		a.drop(u)
	case u.left == 0:
		u.touched = time.Time{}
		a.held.MoveToFront(u.place)
		a.changed.Broadcast()
	}
}

func (a *ahead) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if err := source.CheckRead(ctx, i, a.samples, 0, dst); err != nil {
		return 0, err
	}
	measured := loadtime.IsMeasured(ctx)
	a.measured.Store(measured)
	u, mine := a.find(i)
	switch {
	case u == nil:
		return a.Source.Read(ctx, i, dst)
	case mine:
		a.read(ctx, u, measured)
	}
	arrived := time.Now()
	select {
	case <-u.done:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-a.ctx.Done():
		return 0, context.Cause(a.ctx)
	}
	sample, ok := u.sample(i)
	if !ok {
		return a.Source.Read(ctx, i, dst)
	}
	if measured {
		loadtime.Elsewhere(ctx, a.cost(u, len(sample)), time.Since(arrived))
	}
	if err := source.CheckRead(ctx, i, a.samples, len(sample), dst); err != nil {
		return 0, err
	}
	a.taken(u, i)
	return copy(dst, sample), nil
}

// cost returns the part of so many bytes of the cost of a unit, which another load of them would need again. If the unit was
// not measured, it costs what the last one did.
func (a *ahead) cost(u *unit, bytes int) loadtime.Cost {
	cost, of := u.cost, len(u.data)
	if cost.All == 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		cost, of = a.last.cost, a.last.bytes
	}
	return cost.Part(float64(bytes) / float64(max(of, 1)))
}

// find returns the unit of sample i. If mine is true, the caller MUST read the unit. It returns nil
// if the caller reads the source.
func (a *ahead) find(i int) (u *unit, mine bool) {
	if a.Whole() {
		u, _ = a.unit(a.number(i))
	} else {
		number := a.number(i) // may ask the file system
		a.mu.Lock()
		if u = a.units[number]; u == nil {
			u = a.units[a.single(i)]
		}
	}
	defer a.mu.Unlock()
	switch {
	case u == nil || a.closed:
		return nil, false
	case a.units[u.number] == u && !u.queued:
		return u, false
	case u.number == a.single(i): // announced, but the reader came first
		a.drop(u)
		return nil, false
	}
	if _, ok := a.makeSpace(u.bytes, 0); !ok {
		u.unwant(i)
		a.leave(u)
		return nil, false
	}
	if a.units[u.number] == nil {
		a.units[u.number] = u
		for k := range u.n {
			u.want(u.first+k, isAnnounced)
		}
	}
	a.begin(u)
	return u, true
}

// taken notes that a sample of a unit was read.
func (a *ahead) taken(u *unit, i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.units[u.number] == u && !u.queued { // it has not been dropped since
		u.touched = time.Now()
		a.held.MoveToBack(u.place)
	}
	u.unwant(i)
	a.leave(u)
}

func (a *ahead) Whole() bool { return a.blocks != nil && a.o.Blocks }

func (a *ahead) Held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

func (a *ahead) Close() error {
	a.mu.Lock()
	a.closed = true
	for _, l := range []*list.List{&a.queue, &a.held} {
		for l.Len() > 0 {
			a.drop(l.Front().Value.(*unit))
		}
	}
	a.changed.Broadcast()
	a.mu.Unlock()
	sharing.Delete(a)
	a.stop(errClosing())
	err := a.Source.Close()
	a.readers.Wait()
	return err
}

type aheadBlocks struct {
	*ahead
	source.Layout
}

// ReadBlock reads the block from the source, even if it is held.
func (a aheadBlocks) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	return a.blocks.ReadBlock(ctx, b, each)
}
