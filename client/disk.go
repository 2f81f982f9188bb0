package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/breaker"
	"github.com/stocached/stocached/internal/writequeue"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"
)

// DiskOptions describe a disk cache. Samples, Size, Fingerprint and, without Variable, SampleBytes are required.
type DiskOptions struct {
	Samples     int    // samples of the dataset
	SampleBytes int    // length of each sample; with Variable: of the largest one. 0 with Variable: 4 GiB - 1
	Variable    bool   // samples differ in size
	Size        uint64 // the most that the file may take, in bytes
	// Policy is PolicyFirstCome, Random, Clock, FIFO, LRU or LFU; with Variable PolicyFirstCome.
	Policy      Policy
	Fingerprint string // names dataset and transform, in 1 to 64 bytes
	Label       string // name of this program for others that find the file in use. "": its own name
}

// Disk is a disk cache: a file on a local disk whose samples survive the programs. Processes share it without a
// server: docs/spec/tiers.md, A disk cache without a server. Options.Disk puts it behind a cache in memory.
//
// A disk that fails is no error of a sample. For a while Get misses, and Set returns Full; Passed of Stats counts the calls
// that failed. Calls wait for a disk that hangs. All methods are safe for concurrent use; Close MUST be the last call.
type Disk struct {
	c        *cache.Cache
	seg      *diskfile.Segment
	replaced string

	breaker breaker.Breaker // open while the disk is left out
	full    breaker.Recent

	queue *writequeue.Queue[waiting]
}

// waiting is a sample that SetLater has taken.
type waiting struct {
	i     int
	epoch uint64
}

const (
	queueBytes = 64 << 20        // samples that a Disk writes in the background
	flushTime  = 5 * time.Second // time that Close has
)

// OpenDisk opens the disk cache in a file, or makes it. A file with another fingerprint or other options is made
// again if no process uses it; Replaced says so.
//
// Errors: ErrInvalid, also for a folder on a network file system; ErrNotFound: no such folder; ErrPermission;
// ErrMemory: the file system or /dev/shm has too little space, with the numbers; ErrExists: a server has the
// file, or processes with another /dev/shm; ErrFingerprint, ErrFormat, ErrVersion: processes use the file with
// another fingerprint or other options, or it is no disk cache; ErrTimeout: another process has been opening it for a minute; ErrClients, ErrSystem.
func OpenDisk(path string, o DiskOptions) (*Disk, error) {
	switch {
	case o.Fingerprint == "":
		return nil, fmt.Errorf("%w: Fingerprint: a disk cache outlives its programs, so it needs one that names dataset "+
			"and transform", ErrInvalid)
	case o.Size == 0:
		return nil, fmt.Errorf("%w: Size: give the most that the file may take", ErrInvalid)
	case o.Policy == PolicyCost || o.Policy == PolicyPlanned || o.Policy == PolicyFirstIndices:
		return nil, fmt.Errorf("%w: Policy: a disk cache has first-come, random, clock, fifo, lru or lfu, not %v", ErrInvalid,
			o.Policy)
	}
	seg, replaced, err := diskfile.OpenShared(path, shm.Options{Samples: uint64(o.Samples), Limit: o.Size,
		SampleBytes: uint64(o.SampleBytes), Variable: o.Variable, Policy: o.Policy, Fingerprint: o.Fingerprint})
	if err != nil {
		return nil, err
	}
	c, err := cache.Attach(seg.Segment, cache.Options{Label: o.Label})
	if err == nil {
		_, err = c.Recover()
	}
	if err != nil {
		return nil, errors.Join(err, seg.Close())
	}
	d := &Disk{c: c, seg: seg, replaced: replaced}
	d.queue = d.newQueue(queueBytes, d.write)
	return d, nil
}

func (d *Disk) newQueue(limit int64, write func(context.Context, waiting, []byte)) *writequeue.Queue[waiting] {
	return writequeue.New(writequeue.Options[waiting]{Limit: limit, Writers: 1, Write: write})
}

// write writes a sample of the queue.
func (d *Disk) write(_ context.Context, w waiting, data []byte) {
	_, _ = d.set(func() (Result, error) { return d.c.SetInEpoch(w.i, data, w.epoch) })
}

// Close writes the samples of SetLater, for at most 5 seconds, and ends the handle. The last process that closes the
// file writes its index, so that nothing is lost.
func (d *Disk) Close() error {
	d.queue.Close(flushTime)
	return errors.Join(d.c.Close(), d.seg.Close())
}

// Path returns the path of the file.
func (d *Disk) Path() string { return d.seg.Path() }

// Replaced says why OpenDisk has made the file again; "": it has not.
func (d *Disk) Replaced() string { return d.replaced }

// Look says whether the path still names the file, whole and with its header. ErrFormat: another program has removed,
// replaced, truncated or overwritten it. Then what is stored is lost when the programs end that have the file: close d and
// open the path again. ErrSystem, ErrClosed.
func (d *Disk) Look() error {
	err := d.seg.Look()
	if closed := d.c.CountPassed(0); closed != nil { // Close closes the file after d.c
		return closed
	}
	return err
}

// Get is Cache.Get. It compares the checksum of the sample: a sample with another one is a miss, counted as
// corrupt, and removed. Errors: ErrSchema when dst is too short (the first result is the length), ErrIndex,
// ErrClosed.
func (d *Disk) Get(i int, dst []byte) (int, bool, error) {
	trial, ok := d.works()
	if !ok {
		return 0, false, nil
	}
	n, hit, err := d.c.Get(i, dst)
	var failure error
	switch {
	case hit, err == nil, errors.Is(err, ErrSchema), errors.Is(err, ErrIndex), errors.Is(err, ErrClosed):
	case errors.Is(err, ErrCorrupt): // torn by a power loss, or changed on the disk
		failure = cmp.Or(d.c.Drop(i), d.seg.Failure())
		if errors.Is(failure, ErrCorrupt) {
			failure = nil
		}
		n, err = 0, nil
	default:
		n, failure, err = 0, err, nil
	}
	d.answered(trial, hit, failure)
	return n, hit, err
}

// Set is Cache.Set without flags: it stores a sample that the file does not have. Errors: ErrSchema, ErrIndex,
// ErrClosed.
func (d *Disk) Set(i int, data []byte) (Result, error) {
	return d.set(func() (Result, error) { return d.c.Set(i, data, 0) })
}

// SetLater is Set in the background: it copies the sample, and a goroutine writes it. Stored: it waits for its write,
// and Get misses it until then. Busy: 64 MiB of samples wait already, because the disk is slow; the sample is counted as
// busy. Exists, Full. A Clear drops what waits. Errors are those of Set.
func (d *Disk) SetLater(i int, data []byte) (Result, error) {
	if d.full.Lasts() || d.breaker.Waits() {
		return Full, nil
	}
	return d.c.SetLater(i, data, func(epoch uint64) bool { return d.queue.Put(waiting{i, epoch}, data) })
}

// Flush waits until no sample of SetLater waits for its write. It returns the cause of ctx, or ErrClosed.
func (d *Disk) Flush(ctx context.Context) error {
	if err := d.queue.Flush(ctx); err != nil {
		return err
	}
	return d.c.CountPassed(0) // ErrClosed: Close drops what waits after a while
}

// set calls a function that stores a sample, and leaves the disk out if it fails.
func (d *Disk) set(store func() (Result, error)) (Result, error) {
	if d.full.Lasts() {
		return Full, nil
	}
	trial, ok := d.works()
	if !ok {
		return Full, nil
	}
	r, err := store()
	var failure error
	if !errors.Is(err, ErrSchema) && !errors.Is(err, ErrIndex) && !errors.Is(err, ErrClosed) {
		if failure = cmp.Or(err, d.seg.Failure()); failure != nil {
			r, err = Full, nil
		}
	}
	d.answered(trial, r == Stored && err == nil, failure)
	return r, err
}

// Clear empties the file, for all processes that share it: Cache.Clear.
func (d *Disk) Clear(ctx context.Context) (Result, error) { return d.c.Clear(ctx) }

// Stats adds up the counters of all processes that have shared the file since it was out of use.
func (d *Disk) Stats() (Stats, error) { return d.c.Stats() }

// works says whether a call may use the disk, and whether it tries a disk that is left out. After a pause one call
// does, and others wait for its end. The caller MUST call answered.
func (d *Disk) works() (trial, ok bool) {
	if !d.breaker.IsOpen() {
		return false, true
	}
	trial = d.breaker.Due()
	return trial, trial
}

// answered notes what a call has learned: the disk has read or written, or failed, or neither. A full disk gets no
// sets for a while, and one that fails is left out.
func (d *Disk) answered(trial, worked bool, failure error) {
	switch {
	case diskfile.IsFull(failure):
		d.full.Begin(breaker.FullPause)
	case failure != nil:
		_ = d.c.CountPassed(1)
		if trial {
			d.breaker.Again(failure.Error())
		} else {
			d.breaker.Open(failure.Error())
		}
		return
	case worked && d.breaker.IsOpen():
		d.breaker.Close()
		return
	}
	if trial {
		d.breaker.NotTried()
	}
}

// suits returns ErrInvalid if the samples of the disk are not those of a cache.
func (d *Disk) suits(seg *shm.Segment) error {
	if d == nil {
		return nil
	}
	a, b := seg, d.seg.Segment
	if a.Samples != b.Samples || a.Variable() != b.Variable() || a.Header.SampleBytes != b.Header.SampleBytes {
		return fmt.Errorf("%w: Disk: it is for %d samples of %d bytes (variable: %v), the cache for %d of %d (%v)", ErrInvalid,
			b.Samples, b.Header.SampleBytes, b.Variable(), a.Samples, a.Header.SampleBytes, a.Variable())
	}
	return nil
}
