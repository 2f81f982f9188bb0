// Package served has the caches of a server. Each is a segment, the server's own client of it, and
// the source that fills it.
//
// Prepare (prepare.go) opens the source of a cache, so that its size is known, and makes nothing.
// Serve (cache.go) then creates the segment, or adopts a warm one, and starts the filler. unused.go
// has the janitor's part, stats.go what operators see. The package imports fill and prefetch, and
// knows no clients and no sockets.
package served

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/jobs"
	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/wrap"
	"github.com/stocached/stocached/tier"
)

// Cache is a cache of this server. Callers use it between Enter and Leave. After Shut, Enter fails.
type Cache struct {
	Name      string
	Log       *slog.Logger
	Schedules prefetch.Schedules

	want     shm.Options // options of the segment
	bytes    uint64      // bytes of the segment
	segment  *shm.Segment
	locks    shm.Locks // locks of the field cache, which closes them
	cache    *cache.Cache
	filler   *fill.Filler
	jobs     *jobs.Jobs      // jobs that announced what they read; nil: the policy is not planned
	planned  *prefetch.Ahead // reads ahead for them; nil if jobs is
	counts   *counts
	failures *wrap.Failures // failures of its present source
	adopted  bool           // it was warm before this server started

	track advise.Track // track of its epochs, with the policy cost

	connected atomic.Int64 // number of connections that have attached

	use     sync.RWMutex // protects the fields below; Enter holds it for reading
	gone    bool
	options Options
	bare    source.Source // as opened, without counters
	source  source.Source // with counters, and the tiers around it
	tiers   *tier.Set     // part of source; nil: none
	// the source, if programs load the samples; else nil
	programs *tier.Programs
	ahead    wrap.Ahead // part of the source; nil: it does not read ahead

	idle idleness // only the janitor uses it, and lost
	lost bool     // the log has that another program removed the file

	removes atomic.Bool // Unlink was called

	looks sync.Mutex // protects the field below
	full  uint64     // sets that had found no place at the last look
}

// DrainTimeout is how long the end of a server waits for reads, answers and sources. Tests change
// it.
var DrainTimeout = 10 * time.Second

// removalWait bounds the wait for the end of a removal, which takes microseconds.
const removalWait = 100 * time.Millisecond

// Errors of caches.
var (
	// ErrServed: another server has the cache.
	ErrServed = errors.New("another server fills this cache")
	// ErrNoCache: this server has no cache of that name.
	ErrNoCache = errors.New("this server has no such cache")
)

// Serve creates the segment of a prepared cache. It adopts the segment of an earlier server if the
// name, schema, size and fingerprint match. It removes a segment that differs (its clients keep
// it), and creates a cold one. others is for a server that makes many; nil: it makes one. It also replaces one of another version that no process uses. The served cache owns the source from here on; after an error the
// caller still owns it. Errors: ErrServed when another server has the cache; errors of package shm,
// with the cache's name.
func (p *Prepared) Serve(log *slog.Logger, others *shm.Others) (h *Cache, err error) {
	log = log.With("cache", p.Options.Name)
	defer func() {
		if err != nil {
			h, err = nil, fmt.Errorf("cache %s: %w", p.Options.Name, err)
		}
	}()
	h = &Cache{Name: p.Options.Name, Log: log, want: p.want, bytes: p.Bytes, options: p.Options,
		counts: cmp.Or(p.counts, new(counts))}
	if h.tiers, err = h.openTiers(p); err != nil {
		return nil, err
	}
	if err = h.open(p, others); err != nil {
		h.closeTiers(h.tiers)
		return nil, err
	}
	h.readFrom(p, h.tiers)
	h.full = h.fulls()
	var next func(sample, soon uint64) uint64
	if h.jobs != nil {
		next = h.jobs.Soonest
	}
	h.filler = fill.New(h.cache, h.source, p.Options.Parallel, next, &h.counts.fill, h.failures.Unstored, log)
	h.filler.SetSide(h.sideBytes(p.Options))
	if h.jobs != nil {
		h.planned = prefetch.NewAhead(h, h.jobs)
	}
	h.tellOperators(p)
	return h, nil
}

// open adopts the segment of an earlier server, or creates one, and becomes its client.
func (h *Cache) open(p *Prepared, others *shm.Others) error {
	for {
		segment, err := p.find(false)
		if other := err; errors.Is(err, shm.ErrNotFound) || errors.Is(err, shm.ErrVersion) {
			want := p.want
			want.Others = others
			if h.segment, err = shm.Create(want); errors.Is(err, shm.ErrExists) {
				continue // another process has created it first
			}
			if err != nil {
				return err
			}
			if errors.Is(other, shm.ErrVersion) {
				h.Log.Warn("an empty cache replaces one of another version, which no process used", "because", other)
			}
			fault.At("served.created")
			return h.attach()
		}
		if err != nil {
			return err // another user's, or not a segment: do not remove an unknown file
		}
		h.segment = segment
		fault.At("served.opened")
		if why := differs(&segment.Header, &segment.Geometry, &p.want); why != "" {
			if err := h.replace(why); err != nil {
				return err
			}
			continue
		}
		err = h.attach()
		if errors.Is(err, shm.ErrNotFound) {
			continue // its last user has just ended and removed it
		}
		h.adopted = err == nil
		return err
	}
}

// tellOperators logs what is served, and what its source advises.
func (h *Cache) tellOperators(p *Prepared) {
	filled := uint64(0)
	if h.adopted { // Stats reads the whole index; a cold cache does not need that
		if stats, err := h.cache.Stats(); err == nil {
			filled = stats.Ready
		}
	}
	info := p.source.Info()
	about := []any{"warm", h.adopted, "samples", p.want.Samples, "filled", filled, "bytes",
		h.segment.SegmentBytes, "source", info.Kind, "fingerprint", info.Fingerprint}
	for _, note := range info.Notes {
		if p.Options.Decode != nil && slices.Contains(decode.Notes, note.Name) {
			about = append(about, note.Name, note.Text)
		}
	}
	h.Log.Info("serving", about...)
	p.Advise(h.Log)
}

// Path returns what shm.Open takes to find the cache; "": no name.
func (o Options) Path() string {
	switch {
	case o.Unnamed:
		return ""
	case o.Dir == "":
		return o.Name
	}
	return o.Dir + "/" + o.Name
}

// find opens the segment that an earlier server left. It returns ErrNotFound if there is none; an
// unnamed cache never has one.
func (p *Prepared) find(readOnly bool) (*shm.Segment, error) {
	if p.Options.Unnamed {
		return nil, shm.ErrNotFound
	}
	return shm.Open(p.Options.Path(), shm.OpenOptions{ReadOnly: readOnly})
}

// attach takes the server lock of the segment and becomes its client.
func (h *Cache) attach() error {
	locks, err := h.segment.NewLocks()
	if err != nil {
		return errors.Join(err, h.segment.Close())
	}
	ok, err := locks.TryServer()
	for end := time.Now().Add(removalWait); err == nil && !ok && time.Now().Before(end); ok, err = locks.TryServer() {
		time.Sleep(time.Millisecond) // perhaps stocached rm holds it
	}
	if err == nil && !h.segment.HasName() {
		err = fmt.Errorf("%w: %s was removed", shm.ErrNotFound, h.segment.Path())
	}
	if err == nil && !ok {
		err = fmt.Errorf("%w: %s; end that server first, or give one of the two another name", ErrServed,
			h.segment.Path())
	}
	if err != nil {
		return errors.Join(err, locks.Close(), h.segment.Close())
	}
	fault.At("served.locked")
	o := cache.Options{Label: cmp.Or(h.options.Label, "stocached serve"), Kind: shm.KindServer, Locks: locks}
	h.jobs = nil
	if h.segment.Policy == shm.PolicyPlanned {
		h.jobs = jobs.New(h.segment)
		o.Next = h.jobs.Next
		o.Leaves = func(sample, next uint64) { h.filler.Leaves(sample, next) }
	}
	c, err := cache.Attach(h.segment, o)
	if err != nil {
		return errors.Join(err, h.segment.Close())
	}
	fault.At("served.attached")
	if n, err := c.Recover(); err == nil && n > 0 {
		h.Log.Info("reclaimed the claims of dead clients", "samples", n)
	}
	h.cache, h.locks = c, locks
	return nil
}

// replace removes a segment of other data, unless another server has it.
func (h *Cache) replace(why string) error {
	probe, err := h.segment.ProbeLocks()
	if err == nil && probe.Server {
		err = fmt.Errorf("%w: %s", ErrServed, h.segment.Path())
	}
	if err == nil {
		h.Log.Warn("the existing cache differs; an empty one replaces it, and attached clients "+
			"keep the old one", "because", why)
		err = h.segment.Remove()
		fault.At("served.removed")
	}
	return errors.Join(err, h.segment.Close())
}

// inWords is a size as the configuration has it.
func inWords(size uint64) string {
	if size == 0 {
		return "all"
	}
	return fmt.Sprintf("%d bytes", size)
}

// differs says how a segment differs from the wanted one; "": not at all.
func differs(header *shm.Header, have *shm.Geometry, want *shm.Options) string {
	switch {
	case header.Fingerprint != want.Fingerprint:
		return fmt.Sprintf("its fingerprint is %q, the source has %q", header.Fingerprint, want.Fingerprint)
	case header.Decode != want.Decode:
		return fmt.Sprintf("it says %q of its files, the source says %q", header.Decode, want.Decode)
	case have.Samples != want.Samples:
		return fmt.Sprintf("it has %d samples, the source has %d", have.Samples, want.Samples)
	case header.Limit != want.Limit:
		return fmt.Sprintf("its size is %s, the configuration says %s", inWords(header.Limit), inWords(want.Limit))
	case header.Flags&shm.FlagPrograms != 0 != want.Programs:
		return "programs fill one of the two"
	case have.Variable() != want.Variable:
		return "one of the two is of variable size"
	case have.Policy != want.Policy:
		return fmt.Sprintf("its policy is %v, the configuration says %v", have.Policy, want.Policy)
	case len(header.Fields) != len(want.Fields):
		return fmt.Sprintf("its samples have %d fields, those of the source %d", len(header.Fields), len(want.Fields))
	}
	for k, f := range header.Fields {
		if w := want.Fields[k]; f.Name != w.Name || f.DType != w.DType || fmt.Sprint(f.Dims) != fmt.Sprint(w.Dims) {
			return fmt.Sprintf("its field %d is %s of %v %v, that of the source %s of %v %v", k, f.Name, f.Dims,
				f.DType, w.Name, w.Dims, w.DType)
		}
	}
	return ""
}

// Enter keeps the cache open until Leave. false: it is shut, and the caller MUST NOT call Leave.
func (h *Cache) Enter() bool {
	h.use.RLock()
	if h.gone {
		h.use.RUnlock()
		return false
	}
	return true
}

// Leave ends what Enter has begun.
func (h *Cache) Leave() { h.use.RUnlock() }

// Segment returns the segment of the cache. The caller has entered.
func (h *Cache) Segment() *shm.Segment { return h.segment }

// Client returns the server's own client of the cache. The caller has entered.
func (h *Cache) Client() *cache.Cache { return h.cache }

// Filler returns the filler of the cache.
func (h *Cache) Filler() *fill.Filler { return h.filler }

// Connect counts a connection that has attached to the cache; Disconnect counts its end.
func (h *Cache) Connect()    { h.connected.Add(1) }
func (h *Cache) Disconnect() { h.connected.Add(-1) }

// Options returns the options of the cache. The caller has not entered.
func (h *Cache) Options() Options {
	h.use.RLock()
	defer h.use.RUnlock()
	return h.options
}

// SameData says whether other options give the same samples in the same segment, and no read has found that the source
// has changed. The caller has entered.
func (h *Cache) SameData(o Options) bool {
	return h.options.sameData(o) && !slices.ContainsFunc(h.failures.Now(), func(f wrap.Failing) bool {
		return f.Kind == wrap.KindChanged
	})
}

// Fits says whether the segment matches a prepared cache, and has the same path.
func (h *Cache) Fits(p *Prepared) bool {
	return p.Options.Path() == h.Options().Path() && differs(&h.segment.Header, &h.segment.Geometry, &p.want) == ""
}

// Again returns the cache as it was before Serve, with its source and its counters.
func (h *Cache) Again() *Prepared {
	return &Prepared{Options: h.options, source: h.bare, ahead: h.ahead, want: h.want, Bytes: h.bytes, counts: h.counts,
		failures: h.failures}
}

// Succeed makes a prepared cache go on with the counters of h.
func (p *Prepared) Succeed(h *Cache) { p.counts = h.counts }

// Adjust sets options that change no sample and no segment, and says whether one differs.
func (h *Cache) Adjust(o Options) (changed bool) {
	h.use.Lock()
	changed = !reflect.DeepEqual(h.options, o)
	h.options = o
	h.use.Unlock()
	h.filler.Resize(o.Parallel)
	h.filler.SetSide(h.sideBytes(o))
	return changed
}

// sideBytes is the size of the side buffer of a cache.
func (h *Cache) sideBytes(o Options) uint64 {
	if o.SideBuffer != nil {
		return *o.SideBuffer
	}
	return min(h.segment.PayloadBytes/sidePart, maxSide)
}

// Refill replaces the source by another one of the same data. Reads under way end with the old one.
// ErrEnding: the cache is shut, and nothing has changed.
func (h *Cache) Refill(p *Prepared) error {
	tiers, err := h.openTiers(p)
	if err != nil {
		return err
	}
	h.use.Lock()
	if h.gone {
		h.use.Unlock()
		h.closeTiers(tiers)
		return fill.ErrEnding
	}
	h.tiers = tiers
	h.readFrom(p, tiers)
	h.options = p.Options
	before := h.filler.SetSource(h.source, h.failures.Unstored)
	h.use.Unlock()
	h.filler.Resize(p.Options.Parallel)
	h.filler.SetSide(h.sideBytes(p.Options))
	h.closeLater(before)
	p.Advise(h.Log)
	return nil
}

// Announce records what the job of a client reads from now on, in place of what it announced before. nil: the
// cache has another policy, and needs no announcements. The caller has entered. Errors: order.ErrInvalid,
// jobs.ErrManyJobs.
func (h *Cache) Announce(p jobs.Plan) (*jobs.Job, error) {
	if h.jobs == nil {
		return nil, nil
	}
	return h.jobs.Announce(p)
}

// Fetched counts the samples of a FETCH for the jobs that announced what they read. The caller has entered.
func (h *Cache) Fetched(indices []int64) {
	if h.jobs != nil {
		h.jobs.Fetched(indices)
	}
}

// EndJob forgets a job, unless another connection than by has announced it since.
func (h *Cache) EndJob(old *jobs.Job, by any) {
	if h.jobs != nil && old != nil {
		h.jobs.Remove(old, by)
	}
}

// Withdraw forgets the job of a client.
func (h *Cache) Withdraw(owner uint32) {
	if h.jobs != nil {
		h.jobs.Withdraw(owner)
	}
}

// ReadAhead tells a source that reads ahead which samples come next. The caller has entered.
func (h *Cache) ReadAhead(indices []int) {
	if h.ahead == nil {
		return
	}
	if h.tiers != nil {
		indices = h.tiers.Lacking(indices)
	}
	h.ahead.Prefetch(indices)
}

// Prefetched is ReadAhead of the samples of a PREFETCH that the cache does not have. The caller has entered.
func (h *Cache) Prefetched(indices []int64) {
	if h.ahead == nil {
		return
	}
	missing := make([]int, 0, len(indices))
	for _, i := range indices {
		if state, err := h.cache.State(int(i)); err == nil && state != cache.StateReady {
			missing = append(missing, int(i))
		}
	}
	h.ReadAhead(missing)
}

// Shut ends the server's part in the cache and closes the segment, which stays. It waits for no read under way: their
// clients get the answer that the cache is closing. keepSource leaves the source open, for another cache.
func (h *Cache) Shut(keepSource bool) error {
	h.Schedules.Close()
	if h.planned != nil {
		h.planned.Close()
	}
	stuck := h.filler.Close(0)
	h.use.Lock()
	if h.gone {
		h.use.Unlock()
		return nil
	}
	h.gone = true
	from, tiers := h.source, h.tiers
	err := errors.Join(h.cache.Close(), h.segment.Close())
	h.use.Unlock()
	if keepSource {
		h.closeTiers(tiers) // another cache opens its own
		return err
	}
	closed := h.closeLater(from)
	if stuck > 0 {
		return err
	}
	timer := time.NewTimer(DrainTimeout)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C: // a read of the source itself hangs, such as a read ahead
		h.Log.Warn("the source does not close; the server no longer waits for it", "after", DrainTimeout)
	}
	return err
}

// CloseSource closes the source that Shut has kept open, in the background.
func (h *Cache) CloseSource() { h.closeLater(h.source) }

// closeLater closes a source in the background, when its reads have ended. A read that hangs may
// delay that forever. Then closeLater closes the returned channel.
func (h *Cache) closeLater(s source.Source) (closed <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Close(); err != nil {
			h.Log.Warn("closing a source", "error", err)
		}
	}()
	return done
}

// Unlink removes the name of the segment, if the name still refers to this segment.
func (h *Cache) Unlink() error {
	h.removes.Store(true)
	if err := h.segment.Remove(); err != nil && !errors.Is(err, shm.ErrNotFound) {
		return err
	}
	return nil
}
