package wrap

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"
)

// RateOptions describe a device. A hard disk: 150 MB/s, 8 ms, 1 head. An object store: 500 MB/s, 20
// ms, 64 heads.
type RateOptions struct {
	BytesPerSecond size.Bytes    // limit of all reads together. 0: no limit
	Latency        time.Duration // wait of each read, before its first byte: a seek, or a round trip
	Heads          int           // reads whose latencies may overlap. 0: 1
}

// Rate makes each read take as long as on the described device. Reads wait for a free head in the
// order in which they came. A read takes the latency, and then its bytes pass a line that all heads
// share. A block is one read of its samples' bytes. The time of the source itself counts as part of
// that time; a read takes longer only if the source is slower. A failed read takes its time too,
// except for an invalid index. It returns ErrInvalid for negative options, and without any limit.
func Rate(s source.Source, o RateOptions) (source.Source, error) {
	o.Heads = cmp.Or(o.Heads, 1)
	if o.BytesPerSecond < 0 || o.Latency < 0 || o.Heads < 1 || o.BytesPerSecond == 0 && o.Latency == 0 {
		return nil, fmt.Errorf("%w: %d bytes a second, a latency of %v and %d heads describe no device",
			source.ErrInvalid, o.BytesPerSecond, o.Latency, o.Heads)
	}
	d := &device{RateOptions: o, heads: make(chan head, o.Heads)}
	for range o.Heads {
		d.heads <- head{}
	}
	return through(s, d), nil
}

type device struct {
	RateOptions
	heads chan head // the free ones

	mu   sync.Mutex
	line time.Time // when the line is free
}

// mostLate bounds the lateness of a timer that the next read makes up for. More means a stopped
// process or a sleeping machine.
const mostLate = 10 * time.Millisecond

// head is a head of the device.
type head struct {
	free time.Time // when its last read ended, by the options
	// late is how much later than free the last reader woke up. The next read is shorter by this,
	// so that timers do not make the device slower.
	late time.Duration
}

func (d *device) pass(ctx context.Context, closing <-chan struct{}, r read) (int, error) {
	bytes, err := r.bytes()
	if err != nil {
		return r.do(ctx)
	}
	arrived := time.Now()
	var h head
	select {
	case h = <-d.heads:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-closing:
		return 0, errClosing()
	}
	defer func() { d.heads <- h }()
	transfer := d.transfer(bytes)
	h.free = d.reserve(later(arrived.Add(-h.late), h.free), transfer)
	h.late = min(max(0, arrived.Sub(h.free)), h.late) // what the next read makes up for
	began := time.Now()
	n, err := r.do(ctx)
	own := max(d.Latency+transfer, time.Since(began))
	if wait := time.Until(h.free); wait > 0 {
		if ended := sleep(ctx, closing, wait); ended != nil {
			return 0, ended
		}
		h.late = min(max(0, time.Since(h.free)), mostLate)
	}
	// The time for other reads, and in which the timer was late. Below 0 for a read that made up for a late timer: each
	// costs what the device takes for it.
	loadtime.Queued(ctx, time.Since(arrived)-own)
	return n, err
}

// transfer returns how long bytes take without a wait.
func (d *device) transfer(bytes int64) time.Duration {
	if d.BytesPerSecond == 0 {
		return 0
	}
	return time.Duration(math.Ceil(float64(bytes) / float64(d.BytesPerSecond) * float64(time.Second)))
}

// reserve returns when a read that begins at begin ends.
func (d *device) reserve(begin time.Time, transfer time.Duration) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.line = later(begin.Add(d.Latency), d.line).Add(transfer)
	return d.line
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
