package decode

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// The limits of a measurement (docs/spec/stores.md, The measurement).
const (
	leastTried, mostTried = 8, 64 // files
	triedPart             = 20    // at most one in so many files of the dataset, but the least
	aloneTime             = 250 * time.Millisecond
	togetherTime          = 350 * time.Millisecond
	decodeTime            = 300 * time.Millisecond
	triedBytes            = 64 << 20 // bytes of files, and twice as many of pictures
	memoryWait            = 100e-6   // seconds: a read that waits less does not wait for the source
	mostTrial             = 10 * time.Second
)

// Both has both forms of a source, for the store auto. Before Take it is the decoded form.
type Both struct {
	source.Source // the decoded form
	pictures      *pictures
}

// Forms returns the decoded and the encoded form. Only the one that Take returns may be read.
func (b *Both) Forms() (decoded, encoded source.Source) { return b.Source, b.pictures.files.source() }

// Take returns one of both forms. Its notes have the reason. The other form ends.
func (b *Both) Take(encoded bool, why string) source.Source {
	note := source.Note{Name: ReasonNote, Text: why}
	if encoded {
		b.pictures.closeHelpers()
		files := b.pictures.files
		files.info.Notes = append(files.info.Notes, note)
		return files.source()
	}
	b.pictures.info.Notes = append(b.pictures.info.Notes, note)
	return b.Source
}

// tried is a file that was read.
type tried struct {
	index  int
	sample []byte // sample of the inner source
	read   float64
	busy   float64
	decode float64 // 0: not yet
}

// Measure measures some reads and decodes. readers: how many will read. ok is false if no file could be read and
// decoded, or that took too long.
func (b *Both) Measure(ctx context.Context, readers int) (m Measured, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, mostTrial)
	defer cancel()
	done := make(chan struct{})
	var found Measured
	var did bool
	go func() { // a read may hang in the kernel
		defer close(done)
		found, did = b.measure(ctx, readers)
	}()
	select {
	case <-done:
		return found, did
	case <-ctx.Done():
		return m, false
	}
}

func (b *Both) measure(ctx context.Context, readers int) (m Measured, ok bool) {
	p := b.pictures
	n := p.info.Samples
	few := min(max(leastTried, min(mostTried, n/triedPart)), n)
	// Other files each time: those of the last run are in the page cache.
	left, drawn := make([]*tried, 0, few), map[int]bool{}
	for len(left) < few {
		if i := rand.IntN(n); !drawn[i] {
			drawn[i] = true
			left = append(left, &tried{index: i})
		}
	}
	alone := max(few/4, min(2, few))
	if readers == 1 {
		alone = few
	}
	budget := int64(triedBytes)
	read := func(t *tried) int64 {
		length, err := p.inner.Size(t.index)
		if err != nil || length > triedBytes {
			return 0
		}
		sample, busy := make([]byte, length), 0.0
		took := loadtime.Measure(ctx, func(ctx context.Context) {
			began := threadTime()
			length, err = p.inner.Read(ctx, t.index, sample)
			busy = threadTime() - began
		})
		if err != nil {
			return 0 // a client gets the error when it reads that sample
		}
		t.sample, t.read, t.busy = sample[:length], took.All.Seconds(), busy
		return int64(length)
	}
	start := time.Now()
	each(ctx, 1, left[:alone], start.Add(aloneTime), &budget, read)
	first := having(left[:alone])
	rate := 0.0
	if len(first) > 0 && time.Since(start) < 2*aloneTime && readers > 1 {
		start = time.Now()
		each(ctx, readers, left[alone:], start.Add(togetherTime), &budget, read)
		rate = float64(len(having(left[alone:]))) / time.Since(start).Seconds()
	}
	all := having(left)
	budget = 2 * triedBytes
	each(ctx, min(readers, runtime.GOMAXPROCS(0)), all, time.Now().Add(decodeTime), &budget, func(t *tried) int64 {
		picture, err := make([]byte, p.bytes()), error(nil)
		took := loadtime.Measure(ctx, func(ctx context.Context) { err = p.decode(ctx, t.index, t.sample, picture) })
		if err == nil {
			t.decode = took.All.Seconds()
		}
		return int64(len(picture))
	})
	decoded := slices.DeleteFunc(slices.Clone(all), func(t *tried) bool { return t.decode == 0 })
	if len(first) == 0 || len(decoded) == 0 {
		return m, false
	}
	bytes := func(t *tried) float64 { return float64(len(t.sample)) }
	reads := func(t *tried) float64 { return t.read }
	decodes := func(t *tried) float64 { return t.decode }
	mean, unit := meanOf(all, bytes), 64.0 // a sample lies in units of an arena
	m = Measured{Samples: n, Read: meanOf(first, reads), Reads: math.Inf(1), Decode: meanOf(decoded, decodes),
		DecodedBytes: math.Ceil(float64(p.bytes())/8) * 8,
		EncodedBytes: meanOf(all, func(t *tried) float64 { return math.Ceil(bytes(t)/unit) * unit })}
	if m.Read-meanOf(first, func(t *tried) float64 { return t.busy }) >= memoryWait {
		if rate == 0 {
			rate = float64(readers) / m.Read // reads take long: they count as independent
		}
		m.Reads = max(rate, 1/m.Read) // together, readers get no less than one of them gets alone
	}
	growing := m.Read*grows(first, bytes, reads) + m.Decode*grows(decoded, bytes, decodes)
	for _, t := range all {
		m.Costs = append(m.Costs, 1+growing/(m.Read+m.Decode)*(bytes(t)/max(mean, 1)-1))
	}
	slices.Sort(m.Costs)
	return m, true
}

// Explain says what the store auto would choose at which size, with the default number of readers.
func (b *Both) Explain(ctx context.Context, readers int) string {
	m, ok := b.Measure(ctx, readers)
	if !ok {
		return "decoded: no file could be read and decoded"
	}
	const steps = 200
	whole, most := float64(m.Samples)*m.DecodedBytes+control, uint64(0)
	for k := 1; k <= steps; k++ {
		bytes := uint64(whole * float64(k) / steps)
		if encoded, _ := m.Choose(TermsOf(bytes, readers, false)); encoded {
			most = bytes
		}
	}
	about := fmt.Sprintf("a read takes %.2g ms, a decode %.2g ms; files have %s, pictures %s on average", 1e3*m.Read,
		1e3*m.Decode, size.Text(uint64(m.EncodedBytes)), size.Text(uint64(m.DecodedBytes)))
	if most == 0 {
		return "decoded at any size: " + about
	}
	return fmt.Sprintf("encoded up to a size of %s, decoded above: %s", size.Text(most), about)
}

// TermsOf are the terms of a server: it reads and decodes with its readers, and as many clients decode as there are
// processors. A client asks for several samples at once, so all readers read for them.
func TermsOf(bytes uint64, readers int, costliest bool) Terms {
	processors := runtime.GOMAXPROCS(0)
	return Terms{Size: bytes, Readers: readers, Decoders: max(readers, processors), Processors: processors,
		Costliest: costliest}
}

// each calls do for the work in goroutines, until it is done, the budget is spent or the time is over. do returns
// what it takes of the budget.
func each(ctx context.Context, count int, work []*tried, end time.Time, budget *int64, do func(*tried) int64) {
	var wait sync.WaitGroup
	var mu sync.Mutex
	for range count {
		wait.Go(func() {
			for {
				mu.Lock()
				if len(work) == 0 || *budget <= 0 || time.Now().After(end) || ctx.Err() != nil {
					mu.Unlock()
					return
				}
				t := work[0]
				work = work[1:]
				mu.Unlock()
				took := do(t)
				mu.Lock()
				*budget -= took
				mu.Unlock()
			}
		})
	}
	wait.Wait()
}

// having returns those that were read.
func having(all []*tried) (read []*tried) {
	for _, t := range all {
		if t.sample != nil {
			read = append(read, t)
		}
	}
	return read
}

func meanOf(all []*tried, value func(*tried) float64) float64 {
	sum := 0.0
	for _, t := range all {
		sum += value(t)
	}
	return sum / float64(len(all))
}

// grows is the part of times that grows with bytes, by least squares: 0 to 1.
func grows(all []*tried, bytes, seconds func(*tried) float64) float64 {
	size, time := meanOf(all, bytes), meanOf(all, seconds)
	together, apart := 0.0, 0.0
	for _, t := range all {
		together += (bytes(t) - size) * (seconds(t) - time)
		apart += (bytes(t) - size) * (bytes(t) - size)
	}
	if apart == 0 || time == 0 {
		return 0
	}
	return min(max(together/apart*size/time, 0), 1)
}

// threadTime is the processor time of this thread, in seconds.
func threadTime() float64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return float64(t.Nano()) / 1e9
}
