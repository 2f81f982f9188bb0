// Package disk is the tier `disk`: samples in an ordinary file on a local disk, which survive a restart.
// docs/spec/tiers.md specifies it. The file is a segment (diskfile.Open), and package cache stores in it
// and evicts from it as from any segment.
package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/breaker"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

// Kind is the kind of this tier.
var Kind = tier.Kind{Name: kindName, Defaults: defaults, Check: check, Open: Open, Examine: examine}

const kindName = "disk"

// Tier is part of package tier.
type Tier struct {
	s       *settings
	about   tier.About
	open    func() (*diskfile.Segment, string, error)
	breaker breaker.Breaker // open while the file does not work
	counts  tier.Counts
	full    breaker.Recent
	short   breaker.Recent // writes that found no space on the disk
	poison  breaker.Recent // samples whose checks failed
	remade  breaker.Recent // the file was opened or made again
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.RWMutex      // held for reading by each call; for writing to open and close the file
	seg    *diskfile.Segment // nil: not open yet, or closed
	cache  *cache.Cache
	note   string // why the file was opened or made again, for operators
	lost   string // why the file was given up
	closed bool
}

// Open is part of tier.Kind.
func Open(from source.Settings, about tier.About) (tier.Tier, error) {
	s, err := read(from, about)
	if err != nil {
		return nil, err
	}
	path, options := s.path(about), s.options(about)
	return begin(s, about, func() (*diskfile.Segment, string, error) { return diskfile.Open(path, options) }), nil
}

// begin makes a tier of a function that opens its segment.
func begin(s *settings, about tier.About, open func() (*diskfile.Segment, string, error)) *Tier {
	t := &Tier{s: s, about: about, open: open}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.breaker.Open("the file is not open yet")
	t.running.Go(func() { t.keep(ctx) })
	return t
}

// lookEvery is how often the tier looks whether its file is still there.
var lookEvery = time.Second

// keep opens the file, tries it again while it is left out, and looks after it.
func (t *Tier) keep(ctx context.Context) {
	tick, looked := time.NewTicker(50*time.Millisecond), time.Now()
	defer tick.Stop()
	for first := true; ; first = false {
		if !t.breaker.IsOpen() && time.Since(looked) >= lookEvery {
			looked = time.Now()
			t.look()
		}
		if first || t.breaker.Due() {
			if err := t.try(); err != nil {
				if first {
					t.about.Log.Warn("a tier does not reach its file", "tier", kindName, "because", err)
				}
				t.breaker.Again(oneLine(err))
			} else {
				t.about.Log.Info("a tier has its file", "tier", kindName, "path", t.s.path(t.about), "after", t.breaker.Close())
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look gives the file up if another program has removed, replaced or damaged it. The server would lose its samples when it
// ends, and until then a removed file takes disk space that no listing shows. Afterwards, try opens or makes the file again.
func (t *Tier) look() {
	err := t.seg.Look() // only this goroutine changes it while the breaker is closed
	if err == nil {
		return
	}
	t.fail(err)
	if !errors.Is(err, shm.ErrFormat) {
		return
	}
	t.mu.Lock()
	c, seg := t.cache, t.seg
	t.cache, t.seg, t.lost = nil, nil, err.Error()
	t.mu.Unlock()
	if err := errors.Join(c.Close(), seg.Close()); err != nil {
		t.about.Log.Warn("a tier does not close the file that it has lost", "tier", kindName, "error", err)
	}
}

// try opens the file, or asks whether it works again.
func (t *Tier) try() error {
	t.mu.RLock()
	seg := t.seg
	t.mu.RUnlock()
	if seg != nil {
		err := seg.Probe() // only Close closes it, after this goroutine
		if err == nil {
			_ = seg.Failure() // an earlier error: it would leave the tier out again
			err = seg.Look()
		}
		if !errors.Is(err, shm.ErrFormat) { // else `look` gives it up
			return err
		}
		return nil
	}
	seg, replaced, err := t.open()
	if err != nil {
		return err
	}
	c, err := cache.Attach(seg.Segment, cache.Options{Label: "tier"})
	if err != nil {
		return errors.Join(err, seg.Close())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed { // while the disk did not answer
		return errors.Join(tier.ErrClosed, c.Close(), seg.Close())
	}
	t.seg, t.cache = seg, c
	if because := cmp.Or(t.lost, replaced); because != "" {
		t.lost = ""
		t.note = "its file was opened or made again: " + because
		t.remade.Begin(noted)
		t.about.Log.Warn("a tier has opened or made its file again", "tier", kindName, "because", because)
	}
	return nil
}

// Get is part of tier.Tier.
func (t *Tier) Get(_ context.Context, i, n int, dst []byte) (int, tier.Result) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.breaker.IsOpen() || t.closed {
		t.counts.LeftOut.Add(1)
		return 0, tier.Out
	}
	length, hit, err := t.cache.Get(i, dst[:n])
	switch {
	case hit && (length == n || length < n && t.about.AnySize()):
		t.counts.Hit(length)
		return length, tier.Hit
	case hit, errors.Is(err, shm.ErrCorrupt), errors.Is(err, shm.ErrSchema):
		// torn by a power loss, changed on the disk, or of another length: never the sample
		t.counts.Poisoned.Add(1)
		if t.poison.Begin(overAfter) {
			t.about.Log.Warn("the disk of a tier gives other bytes than it was given; these samples are loaded again",
				"tier", kindName, "path", t.s.path(t.about), "sample", i)
		}
		t.drop(i)
	case err != nil:
		t.fail(err)
		t.counts.LeftOut.Add(1)
		return 0, tier.Out
	}
	t.counts.Misses.Add(1)
	return 0, tier.Miss
}

// Samples is part of tier.Sized.
func (t *Tier) Samples() int {
	n, _ := diskfile.Slots(t.s.options(t.about)) // Open has checked them
	return int(n)
}

// Has is part of tier.Knowing.
func (t *Tier) Has(i int) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.breaker.IsOpen() || t.closed {
		return false
	}
	state, err := t.cache.State(i)
	return err == nil && state == cache.StateReady
}

func (t *Tier) drop(i int) {
	err := t.cache.Drop(i)
	if err == nil {
		err = t.seg.Failure()
	}
	if err != nil {
		t.fail(err)
	}
}

// Accepts is part of tier.Tier.
func (t *Tier) Accepts(int, int) bool {
	if t.breaker.IsOpen() || t.full.Lasts() {
		t.counts.Dropped.Add(1)
		return false
	}
	return true
}

// Put is part of tier.Tier.
func (t *Tier) Put(_ context.Context, i int, sample []byte) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.breaker.IsOpen() || t.closed {
		t.counts.Dropped.Add(1)
		return
	}
	r, err := t.cache.Set(i, sample, 0)
	if err == nil {
		err = t.seg.Failure()
	}
	switch {
	case r == cache.Full || diskfile.IsFull(err):
		if err = cmp.Or(err, t.seg.NoSpace()); err != nil && t.short.Begin(overAfter) {
			t.about.Log.Warn("the disk of a tier has no space, so samples are not written to it", "tier", kindName,
				"path", t.s.path(t.about), "because", err)
		}
		t.full.Begin(breaker.FullPause)
		t.counts.Refused.Add(1)
	case err != nil:
		t.fail(err)
		t.counts.Dropped.Add(1)
	case r == cache.Stored:
		t.counts.Written(len(sample))
		if t.short.Ended() {
			t.about.Log.Info("the disk of a tier has space again", "tier", kindName, "path", t.s.path(t.about))
		}
	}
}

// noted is how long health tells that the file was opened or made again. It ends nothing that works, so it comes once.
const noted = time.Hour

// overAfter is the time after which a failure is over if none follows, so the next is warned of again.
const overAfter = time.Minute

// fail leaves the tier out after an error of its disk.
func (t *Tier) fail(err error) {
	if t.breaker.Open(oneLine(err)) {
		t.about.Log.Warn("a tier is left out", "tier", kindName, "path", t.s.path(t.about), "because", err)
	}
}

func oneLine(err error) string { return source.OneLine(err.Error()) }

// Status is part of tier.Tier.
func (t *Tier) Status() tier.Status {
	s := t.counts.Status(kindName)
	s.Openings = t.breaker.Openings() - 1 // the tier begins open
	because, out := t.breaker.State()
	s.Nodes = []tier.NodeStatus{{Address: t.s.path(t.about), LeftOut: because != "", Because: because, Seconds: out.Seconds(),
		Full: t.full.Lasts()}}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.remade.Lasts() {
		s.Notes = []string{t.note}
	}
	if t.poison.Lasts() {
		s.Notes = append(s.Notes, fmt.Sprintf("%s gives other bytes than it was given, after a loss of power or by damage; "+
			"these samples are loaded again (poisoned: %d)", t.s.path(t.about), s.Poisoned))
	}
	if t.short.Lasts() {
		s.Notes = append(s.Notes, fmt.Sprintf("the disk of %s has no space, so samples are not written to it "+
			"(refused: %d)", t.s.path(t.about), s.Refused))
	}
	return s
}

// Close is part of tier.Tier. It writes what the system holds of the file to the disk.
func (t *Tier) Close() error {
	t.stop()
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seg == nil {
		return nil
	}
	err := errors.Join(t.cache.Close(), t.seg.Close())
	t.seg = nil
	return err
}
