// Package prefetch reads the samples of a cache ahead of a job, in the order in which the job will
// ask for them. Operators call such a Schedule a plan (docs/spec/control.md).
//
// In a cache with the policy planned, an Ahead (ahead.go) does so for all jobs that announced their
// orders (package jobs).
//
// Options (options.go) name the order. A Schedule (schedule.go) is one goroutine that requests
// samples from the cache's filler. Schedules (schedules.go) are all schedules of a cache. The
// package imports fill, order, cache and shm, and knows a served cache only as the interface Cache.
package prefetch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/shm"
)

const (
	defaultAhead = 4096
	// maxSchedules is the most schedules of a cache. Each is a goroutine that wakes some times a
	// second and has a place in the round robin.
	maxSchedules = 16
	// chunk is how many samples a schedule requests at a time, maxUnderWay the most that are under
	// way. So many samples of the old order are still read after a schedule is replaced.
	chunk       = 256
	maxUnderWay = 512
	// tickTime is how often a schedule checks how far the clients are. In that time they read only
	// a small part of what is ahead.
	tickTime = 20 * time.Millisecond
	// retryTime is how often a schedule of a full cache checks for free slots again.
	retryTime = time.Second
)

// Idle is how long a schedule lives while no client reads the cache. Tests change it.
var Idle = time.Hour

// Errors of plans.
var (
	// ErrNoPlan: the cache has no plan of that name.
	ErrNoPlan = errors.New("there is no such plan")
	// ErrManyPlans: the cache has reached its limit of plans.
	ErrManyPlans = errors.New("too many plans")
)

// Cache is a served cache, as a schedule sees it. It stays open between Enter and Leave.
type Cache interface {
	Enter() bool
	Leave()
	Segment() *shm.Segment
	Client() *cache.Cache
	Filler() *fill.Filler
	// ReadAhead tells a source that reads ahead which samples come next.
	ReadAhead(indices []int)
}

// Schedule reads samples ahead in the order of a job. It requests, in that order and with the
// priority of a PREFETCH, the samples that the cache does not have. It stays at most Ahead samples
// ahead of the clients. The counters of the segment say how far the clients are: they count all
// reads since the schedule started. Reads of other programs move the schedule further ahead, never
// back.
type Schedule struct {
	cache   Cache
	all     *Schedules
	log     *slog.Logger
	options Options
	parts   []*order.Part // the shards of the ranks
	total   uint64        // samples of all shards
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{} // has an element when a request has ended
	queue   *fill.Queue
	held    atomic.Bool // give up what is in the queue: the cache has no slots for it, or the plan has ended

	mu       sync.Mutex // protects the fields below
	round    uint64     // samples planned of each rank
	next     uint64     // samples planned of all ranks
	began    uint64     // reads of the cache when the plan began
	consumed uint64     // samples read by clients, as far as the counters tell
	moved    time.Time  // when consumed or next last changed
	requests map[*fill.Request]bool
	underWay int
	read     uint64
	failed   uint64
	noRoom   uint64
	full     bool      // the cache had no free slot
	fullAt   uint64    // the life of the cache, between two clears, in which it was full
	asked    uint64    // the life of the cache at the last request
	retry    time.Time // earliest time of the next try
	closing  bool      // the cache is closing
}

// Status describes a schedule to operators. Fields are never renamed.
type Status struct {
	Options
	State    string `json:"state"`     // reading; waiting: as far ahead as it may be; full: the cache has no free slot
	Total    uint64 `json:"total"`     // samples of the plan
	Consumed uint64 `json:"consumed"`  // samples of these that clients read, as far as the counters tell
	Planned  uint64 `json:"planned"`   // in the cache, requested, or given up
	UnderWay int    `json:"under_way"` // requested
	Read     uint64 `json:"read"`      // samples that the server has read for the plan
	Failed   uint64 `json:"failed"`    // samples that the server could not read
	NoRoom   uint64 `json:"no_room"`   // skipped, because the cache has no slot for them
}

// run reads ahead until the end of the epoch or of the schedule.
func (p *Schedule) run() {
	why := "it was ended"
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	for p.ctx.Err() == nil {
		if reason := p.step(); reason != "" {
			why = reason
			break
		}
		select {
		case <-p.ctx.Done():
		case <-tick.C:
		case <-p.wake:
		}
	}
	p.cancel()
	p.cancelAll()
	p.all.remove(p)
	a := p.status()
	p.log.Info("a plan has ended", "plan", p.options.Name, "because", why, "samples", a.Total, "planned", a.Planned,
		"read", a.Read, "failed", a.Failed, "no_room", a.NoRoom)
}

// stop ends the schedule. The server reads nothing more for it.
func (p *Schedule) stop() {
	p.held.Store(true)
	p.cancel()
}

// cancelAll cancels all requests.
func (p *Schedule) cancelAll() {
	p.mu.Lock()
	left := slices.Collect(maps.Keys(p.requests))
	p.mu.Unlock()
	for _, r := range left {
		p.cache.Filler().Cancel(r)
	}
}

// step requests as much as it may now. It returns why the schedule is over; "": it is not over.
func (p *Schedule) step() (over string) {
	if !p.cache.Enter() {
		return "its cache was closed"
	}
	defer p.cache.Leave()
	now := readsOf(p.cache.Segment())
	p.mu.Lock()
	if consumed := min(now-p.began, p.total); consumed > p.consumed {
		p.consumed, p.moved = consumed, time.Now()
	}
	p.mu.Unlock()
	if p.held.Load() {
		p.cancelAll() // otherwise earlier requests would be read in vain
		p.held.Store(false)
	}
	for p.more() {
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return "its cache was closed"
	case p.next == p.total && p.underWay == 0:
		return "all of its epoch was planned"
	case p.underWay == 0 && time.Since(p.moved) > Idle:
		return fmt.Sprintf("no client has read the cache for %v", Idle)
	}
	return ""
}

// more takes a chunk of the order, and requests its missing samples. false: it may request nothing
// now. The caller has entered.
func (p *Schedule) more() bool {
	ranks := uint64(len(p.parts))
	p.mu.Lock()
	limit := min(p.consumed+max(p.options.Ahead, ranks), p.total)
	rounds := min((limit-min(p.next, limit))/ranks, max(chunk/ranks, 1)) // samples of each rank
	if rounds == 0 && p.next < limit && p.total-p.next < ranks {         // the last round: some ranks have no sample in it
		rounds = 1
	}
	if rounds == 0 || p.underWay >= maxUnderWay || p.closing || p.ctx.Err() != nil {
		p.mu.Unlock()
		return false
	}
	indices := p.indices(rounds)
	p.moved = time.Now()
	p.mu.Unlock()
	p.ask(indices)
	return true
}

// indices returns the next samples: rounds of each rank, interleaved. The caller holds mu.
func (p *Schedule) indices(rounds uint64) []int {
	row := make([]int, rounds)
	all := make([]int, 0, rounds*uint64(len(p.parts)))
	columns := make([][]int, len(p.parts))
	for k, part := range p.parts {
		columns[k] = append([]int(nil), row[:part.Fill(row, p.round)]...)
	}
	for r := range int(rounds) {
		for _, column := range columns {
			if r < len(column) {
				all = append(all, column[r])
			}
		}
	}
	p.round += rounds
	p.next += uint64(len(all))
	return all
}

// ask requests the missing samples, as far as the cache has free slots.
func (p *Schedule) ask(indices []int) {
	client := p.cache.Client()
	missing, noRoom := make([]int, 0, len(indices)), 0
	for _, i := range indices {
		switch state, err := client.State(i); {
		case err != nil || state == cache.StateReady:
		case state == cache.StateOut:
			noRoom++
		default:
			missing = append(missing, i)
		}
	}
	p.cache.ReadAhead(missing) // also those without a slot: a client that asks for one finds it in memory
	p.mu.Lock()
	if room, try := p.room(); !room {
		most := 0
		if try && len(missing) > 0 {
			p.retry, most = time.Now().Add(retryTime), 1
		}
		noRoom += len(missing) - most
		missing = missing[:most]
	}
	p.noRoom += uint64(noRoom)
	if len(missing) == 0 {
		p.mu.Unlock()
		return
	}
	r := fill.NewRequest(p, p.queue, missing)
	r.FreeOnly = true // in a cache that evicts: a victim may be a sample that this epoch still needs
	p.requests[r], p.asked = true, p.cache.Client().Life()
	p.underWay += len(missing)
	p.mu.Unlock()
	p.cache.Filler().Submit(r)
}

// room says whether the cache may have a free slot, and try whether a read should find out. The
// caller holds mu and has entered.
func (p *Schedule) room() (room, try bool) {
	seg := p.cache.Segment()
	if seg.HasSlotTable() && uint64(shm.FreeFrom(seg.FreeFrom().Load()).From()) >= seg.Slots {
		p.full, p.fullAt = true, p.cache.Client().Life()
		return false, false
	}
	if p.full && p.cache.Client().Life() != p.fullAt {
		p.full = false // a clear came in between
	}
	return !p.full, time.Now().After(p.retry)
}

// CanTake returns true: a schedule keeps no bytes.
func (p *Schedule) CanTake(int) bool { return true }

// Take refuses a sample that has no slot.
func (p *Schedule) Take(uint32, *fill.Buffer) bool {
	p.noSlot()
	return false
}

// noSlot records that the cache has no slot for a sample that was read. The filler calls it
// while it keeps the cache open.
func (p *Schedule) noSlot() {
	p.held.Store(true)
	p.mu.Lock()
	p.setFull(p.cache.Client().Life())
	p.mu.Unlock()
	p.wakeUp()
}

// setFull records that the cache was full in a life of it. The caller holds mu.
func (p *Schedule) setFull(life uint64) {
	p.full, p.fullAt, p.retry = true, life, time.Now().Add(retryTime)
}

// wakeUp wakes the schedule now.
func (p *Schedule) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Done counts the results of a request after its last sample.
func (p *Schedule) Done(r *fill.Request, failures []control.Failure) {
	p.mu.Lock()
	delete(p.requests, r)
	p.underWay -= r.Len()
	for _, f := range failures {
		switch f.Code {
		case control.CodeNoSlot, control.CodeNoMemory: // perhaps without a read
			p.noRoom++
			p.setFull(p.asked)
		case control.CodeCancelled:
			p.noRoom++
		case control.CodeClosing:
			p.closing = true
		case control.CodeKind: // programs make it
		default:
			p.failed++
		}
	}
	p.read += uint64(r.Len() - len(failures))
	if len(failures) == 0 {
		p.full = false // until a read finds no slot
	}
	p.mu.Unlock()
	p.wakeUp()
}

// status describes the schedule.
func (p *Schedule) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := Status{Options: p.options, State: "waiting", Total: p.total, Consumed: p.consumed, Planned: p.next,
		UnderWay: p.underWay, Read: p.read, Failed: p.failed, NoRoom: p.noRoom}
	switch {
	case p.full:
		a.State = "full"
	case p.underWay > 0 || p.next < min(p.consumed+p.options.Ahead, p.total):
		a.State = "reading"
	}
	return a
}

// readsOf returns how many samples clients have read from a cache in its whole life, hits and misses.
func readsOf(s *shm.Segment) (n uint64) {
	for r := range s.RecordsUsed() {
		n += s.Count(r, shm.Hits) + s.Count(r, shm.Misses)
	}
	return n
}
