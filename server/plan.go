package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/shm"
)

// PlanOptions say in which order a job is going to read the samples of a cache: what operators send. docs/order.md has the meaning of all that is not about this machine.
type PlanOptions struct {
	Name      string   `json:"name"`    // of the plan in its cache; one of the same name is replaced. "": "plan"
	Samples   uint64   `json:"samples"` // that the job believes there are; 0: it does not say
	Kind      string   `json:"kind"`    // as order.Kind writes it
	Seed      uint64   `json:"seed"`
	Window    uint64   `json:"window"`
	Block     uint64   `json:"block"`
	Epoch     uint64   `json:"epoch"`
	Position  uint64   `json:"position"`   // in the epoch, that the job is at
	WorldSize uint64   `json:"world_size"` // ranks of the job; 0: 1
	Ranks     []uint64 `json:"ranks"`      // of these, the ones that read this cache; nil: all
	Ends      string   `json:"ends"`       // uneven, pad or drop. "": uneven
	Ahead     uint64   `json:"ahead"`      // samples that the server reads ahead of what was read by clients, at most. 0: 4,096
}

const (
	defaultAhead = 4096
	// maxPlans of a cache: each is a goroutine that looks around some times a second, and takes its turns.
	maxPlans = 16
	// planChunk is how many samples a plan looks at, and asks the filler for, at a time; planUnderWay how many it has asked for at most. So much is read of the old order when a plan is replaced.
	planChunk    = 256
	planUnderWay = 512
	// planTick is how often it looks how far the clients are. In that time they read no more than a small part of what is ahead.
	planTick = 20 * time.Millisecond
	// planRetry is how often a plan of a cache that was full tries whether there is room again.
	planRetry = time.Second
)

// planIdle is how long a plan lives that nobody follows. A variable for tests.
var planIdle = time.Hour

// Errors of plans.
var (
	// ErrNoPlan: the cache has no plan of that name.
	ErrNoPlan = errors.New("there is no such plan")
	// ErrManyPlans: the cache has as many plans as it may have.
	ErrManyPlans = errors.New("too many plans")
)

// plan reads ahead in the order of a job: what nobody has read from the source yet is asked for in that order, at the priority of a PREFETCH, as long as it is not too far ahead of what
// clients have read. What that is, the segment counts: all that was read of the cache since the plan began. Readers that are not of this plan bring it further ahead than it
// was to be, and never behind.
type plan struct {
	host    *hosted
	options PlanOptions
	parts   []*order.Part // of the ranks
	total   uint64        // samples of all of them
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{} // has something in it when what was asked for has come
	queue   *fill.Queue
	held    atomic.Bool // what is in the queue is to be given up: there is no room for it, or the plan was ended

	mu       sync.Mutex // protects what follows
	round    uint64     // samples of each rank that were looked at
	next     uint64     // samples that were looked at
	began    uint64     // reads of the cache when the plan began
	consumed uint64     // samples, as far as can be told
	moved    time.Time  // when consumed or next last did
	requests map[*fill.Request]bool
	underWay int
	read     uint64
	failed   uint64
	noRoom   uint64
	full     bool      // the cache had no room
	fullAt   uint64    // in which of its lives between clears
	retry    time.Time // not before
	closing  bool      // the cache is
}

// planAnswer is a plan as operators see it. Fields are never renamed.
type planAnswer struct {
	PlanOptions
	State    string `json:"state"`     // reading; waiting: it is as far ahead as it may be; full: the cache has no room
	Total    uint64 `json:"total"`     // samples of the plan
	Consumed uint64 `json:"consumed"`  // of these: read by clients, as far as can be told
	Planned  uint64 `json:"planned"`   // in the cache, asked for, or given up
	UnderWay int    `json:"under_way"` // asked for
	Read     uint64 `json:"read"`      // that the server has read for it
	Failed   uint64 `json:"failed"`    // that it could not
	NoRoom   uint64 `json:"no_room"`   // passed over, because the cache has no room for them
}

// order checks the options against the cache. ErrInvalid.
func (o *PlanOptions) order(samples uint64) (of order.Order, ends order.Ends, err error) {
	of = order.Order{Samples: samples, Seed: o.Seed, Window: o.Window, Block: o.Block}
	if o.Samples != 0 && o.Samples != samples {
		return of, 0, fmt.Errorf("%w: the plan is of %d samples, and the cache of %d; a plan of another dataset would read what nobody asks for", order.ErrInvalid, o.Samples, samples)
	}
	var kinds []string
	for of.Kind = order.Sequential; of.Kind.String() != o.Kind; of.Kind++ {
		if kinds = append(kinds, of.Kind.String()); of.Kind == order.Blocks {
			return of, 0, fmt.Errorf("%w: kind %q; there are: %s", order.ErrInvalid, o.Kind, strings.Join(kinds, ", "))
		}
	}
	names := []string{"uneven", "pad", "drop"} // in the order of order.Ends
	k := slices.Index(names, cmp.Or(o.Ends, names[0]))
	if k < 0 {
		return of, 0, fmt.Errorf("%w: ends %q; there are: %s", order.ErrInvalid, o.Ends, strings.Join(names, ", "))
	}
	return of, order.Ends(k), nil
}

// complete sets what has a default, and returns what the ranks read.
func (o *PlanOptions) complete(samples uint64) (parts []*order.Part, err error) {
	of, ends, err := o.order(samples)
	if err != nil {
		return nil, err
	}
	o.Name, o.Samples, o.WorldSize, o.Ahead = cmp.Or(o.Name, "plan"), samples, max(o.WorldSize, 1), cmp.Or(o.Ahead, defaultAhead)
	o.Ends = cmp.Or(o.Ends, "uneven")
	if err := shm.CheckName(o.Name); err != nil {
		return nil, fmt.Errorf("the name of the plan: %w", err)
	}
	const maxRanks = 1 << 16
	if o.WorldSize > maxRanks {
		return nil, fmt.Errorf("%w: a world_size of %d, at most %d", order.ErrInvalid, o.WorldSize, maxRanks)
	}
	if o.Ranks == nil {
		for rank := range o.WorldSize {
			o.Ranks = append(o.Ranks, rank)
		}
	}
	o.Ranks = slices.Compact(slices.Sorted(slices.Values(o.Ranks)))
	if len(o.Ranks) == 0 {
		return nil, fmt.Errorf("%w: a plan of no ranks; leave ranks out for all", order.ErrInvalid)
	}
	epoch, err := of.Epoch(o.Epoch)
	if err != nil {
		return nil, err
	}
	for _, rank := range o.Ranks {
		part, err := order.Shard{Rank: rank, Ranks: o.WorldSize, From: o.Position, Ends: ends}.Of(epoch)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// Plan has the samples of a cache read ahead in the order of a job, until the end of its epoch. ErrNoCache; order.ErrInvalid, shm.ErrInvalid with what is wrong; ErrManyPlans, ErrEnding.
func (s *Server) Plan(name string, o PlanOptions) error {
	_, err := s.plan(name, o)
	return err
}

// plan is Plan, and returns what the plan begins as.
func (s *Server) plan(name string, o PlanOptions) (planAnswer, error) {
	h, err := s.look(name)
	if err != nil {
		return planAnswer{}, err
	}
	defer h.leave()
	parts, err := o.complete(h.segment.Samples)
	if err != nil {
		return planAnswer{}, fmt.Errorf("a plan for cache %s: %w", name, err)
	}
	p := &plan{host: h, options: o, parts: parts, wake: make(chan struct{}, 1), began: h.consumed(), moved: time.Now(), requests: map[*fill.Request]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.queue = fill.NewQueue(true, p.held.Load)
	for _, part := range parts {
		p.total += part.Samples()
	}
	if err := h.plans.add(p); err != nil {
		p.cancel()
		return planAnswer{}, fmt.Errorf("cache %s: %w", name, err)
	}
	h.log.Info("a plan has begun", "plan", o.Name, "kind", o.Kind, "seed", o.Seed, "epoch", o.Epoch, "position", o.Position, "samples", p.total, "ahead", o.Ahead)
	return p.answer(), nil
}

// look begins to look into a cache, which the caller has to leave. ErrNoCache, ErrEnding.
func (s *Server) look(name string) (*hosted, error) {
	if h := s.enter(name); h != nil {
		return h, nil
	}
	if s.ending() {
		return nil, ErrEnding
	}
	return nil, fmt.Errorf("%w: %s; it has: %s", ErrNoCache, name, s.names())
}

// EndPlan ends a plan of a cache, all of them with the name "", and returns their names. ErrNoCache, ErrNoPlan, ErrEnding.
func (s *Server) EndPlan(name, plan string) (ended []string, err error) {
	h, err := s.look(name)
	if err != nil {
		return nil, err
	}
	defer h.leave()
	return h.plans.end(plan)
}

// consumed returns how many samples clients have read of the cache, hits and misses, ever. The caller has entered.
func (h *hosted) consumed() (n uint64) {
	for r := range min(uint32(h.segment.ClientsHigh().Load()), h.segment.ClientRecords) {
		for stripe := range shm.CounterStripes {
			n += h.segment.Counter(r, stripe, shm.Hits).Load() + h.segment.Counter(r, stripe, shm.Misses).Load()
		}
	}
	return n
}

// run reads ahead until the end of the epoch, or of the plan.
func (p *plan) run() {
	why := "it was ended"
	tick := time.NewTicker(planTick)
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
	p.giveUp()
	p.host.plans.remove(p)
	a := p.answer()
	p.host.log.Info("a plan is over", "plan", p.options.Name, "because", why, "samples", a.Total, "planned", a.Planned, "read", a.Read, "failed", a.Failed, "no_room", a.NoRoom)
}

// stop ends the plan: nothing more is read for it from here on.
func (p *plan) stop() {
	p.held.Store(true)
	p.cancel()
}

// giveUp cancels what was asked for.
func (p *plan) giveUp() {
	p.mu.Lock()
	left := slices.Collect(maps.Keys(p.requests))
	p.mu.Unlock()
	for _, r := range left {
		p.host.filler.Cancel(r)
	}
}

// step asks for what may be asked for now. It returns why there is nothing more to do; "": there is.
func (p *plan) step() (over string) {
	if !p.host.enter() {
		return "its cache was closed"
	}
	defer p.host.leave()
	now := p.host.consumed()
	p.mu.Lock()
	if consumed := min(now-p.began, p.total); consumed > p.consumed {
		p.consumed, p.moved = consumed, time.Now()
	}
	p.mu.Unlock()
	if p.held.Load() {
		p.giveUp() // or what was asked for before that was known would be read for nothing
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
	case p.underWay == 0 && time.Since(p.moved) > planIdle:
		return fmt.Sprintf("nobody has read the cache for %v", planIdle)
	}
	return ""
}

// more looks at a chunk of the order, and asks for what is missing of it. false: there is none that may be asked for now. The caller has entered.
func (p *plan) more() bool {
	ranks := uint64(len(p.parts))
	p.mu.Lock()
	limit := min(p.consumed+max(p.options.Ahead, ranks), p.total)
	rounds := min((limit-min(p.next, limit))/ranks, max(planChunk/ranks, 1))
	if rounds == 0 && p.next < limit && p.total-p.next < ranks { // the last round, in which some ranks have none
		rounds = 1
	}
	if rounds == 0 || p.underWay >= planUnderWay || p.closing || p.ctx.Err() != nil {
		p.mu.Unlock()
		return false
	}
	indices := p.indices(rounds)
	p.moved = time.Now()
	p.mu.Unlock()
	p.ask(indices)
	return true
}

// indices returns the next samples: so many of each rank, side by side. With mu held.
func (p *plan) indices(rounds uint64) []int {
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

// ask asks for those that are neither there nor without room.
func (p *plan) ask(indices []int) {
	h := p.host
	missing, noRoom := make([]int, 0, len(indices)), 0
	for _, i := range indices {
		switch state, err := h.cache.State(i); {
		case err != nil || state == cache.StateReady:
		case state == cache.StateOut:
			noRoom++
		default:
			missing = append(missing, i)
		}
	}
	if h.ahead != nil {
		h.ahead.Prefetch(missing) // of what has no room as well: who asks for it finds it in memory
	}
	p.mu.Lock()
	if room, try := p.room(); !room {
		most := 0
		if try && len(missing) > 0 {
			p.retry, most = time.Now().Add(planRetry), 1
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
	p.requests[r] = true
	p.underWay += len(missing)
	p.mu.Unlock()
	h.filler.Submit(r)
}

// room says whether the cache may have room, and try whether it is worth a read to find out. With mu held, by who has entered.
func (p *plan) room() (room, try bool) {
	seg := p.host.segment
	if seg.FirstCome() && uint64(shm.FreeFrom(seg.FreeFrom().Load()).From()) >= seg.Slots {
		p.full, p.fullAt = true, p.life()
		return false, false
	}
	if p.full && p.life() != p.fullAt {
		p.full = false // it was cleared
	}
	return !p.full, time.Now().After(p.retry)
}

// life counts the clears of the cache.
func (p *plan) life() uint64 { return shm.Phase(p.host.segment.Phase().Load()).Epoch() }

// CanTake is true: a plan keeps no bytes.
func (p *plan) CanTake(int) bool { return true }

// Take takes notice of a sample that has no slot.
func (p *plan) Take(uint32, *fill.Buffer) bool {
	p.noSlot()
	return false
}

// noSlot takes notice of a sample that was read, and has no room. The filler calls it, whose cache is open as long as it does.
func (p *plan) noSlot() {
	p.held.Store(true)
	p.mu.Lock()
	p.full, p.fullAt, p.retry = true, p.life(), time.Now().Add(planRetry)
	p.mu.Unlock()
	p.look()
}

// look has the plan look around now.
func (p *plan) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// ended takes notice of a request whose last sample came, or failed.
func (p *plan) Done(r *fill.Request, failures []control.Failure) {
	p.mu.Lock()
	delete(p.requests, r)
	p.underWay -= r.Len()
	for _, f := range failures {
		switch f.Code {
		case control.CodeNoSlot, control.CodeCancelled:
			p.noRoom++
		case control.CodeClosing:
			p.closing = true
		default:
			p.failed++
		}
	}
	p.read += uint64(r.Len() - len(failures))
	if len(failures) == 0 {
		p.full = false // until the next one says otherwise
	}
	p.mu.Unlock()
	p.look()
}

// answer describes the plan.
func (p *plan) answer() planAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := planAnswer{PlanOptions: p.options, State: "waiting", Total: p.total, Consumed: p.consumed, Planned: p.next, UnderWay: p.underWay, Read: p.read, Failed: p.failed, NoRoom: p.noRoom}
	switch {
	case p.full:
		a.State = "full"
	case p.underWay > 0 || p.next < min(p.consumed+p.options.Ahead, p.total):
		a.State = "reading"
	}
	return a
}

// plans are those of a cache.
type plans struct {
	running sync.WaitGroup

	mu     sync.Mutex // protects what follows
	all    map[string]*plan
	closed bool
}

// add begins a plan, in the place of one that has its name. ErrManyPlans, ErrEnding.
func (s *plans) add(p *plan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.all[p.options.Name]
	switch {
	case s.closed:
		return ErrEnding
	case old != nil:
		old.stop()
	case len(s.all) >= maxPlans:
		return fmt.Errorf("%w: it has %d already (%s); end one (DELETE), or give this one the name of one that it is to replace", ErrManyPlans, len(s.all), s.names())
	}
	if s.all == nil {
		s.all = map[string]*plan{}
	}
	s.all[p.options.Name] = p
	s.running.Go(p.run)
	return nil
}

// names lists them, for messages. With mu held.
func (s *plans) names() string {
	if len(s.all) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(s.all)), ", ")
}

// remove forgets a plan that is over.
func (s *plans) remove(p *plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.options.Name] == p {
		delete(s.all, p.options.Name)
	}
}

// end ends a plan; "": all. ErrNoPlan.
func (s *plans) end(name string) (ended []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != "" && s.all[name] == nil {
		return nil, fmt.Errorf("%w: %s; the cache has: %s", ErrNoPlan, name, s.names())
	}
	ended = []string{}
	for key, p := range s.all {
		if name == "" || key == name {
			p.stop()
			delete(s.all, key)
			ended = append(ended, key)
		}
	}
	slices.Sort(ended)
	return ended, nil
}

// answers describes them, in the order of their names.
func (s *plans) answers() []planAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]planAnswer, 0, len(s.all))
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		all = append(all, s.all[name].answer())
	}
	return all
}

// cancel ends all of them, without waiting, and lets no other begin.
func (s *plans) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, p := range s.all {
		p.stop()
	}
}

// close is cancel, and waits.
func (s *plans) close() {
	s.cancel()
	s.running.Wait()
}
