package prefetch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/server/fill"
)

// Schedules are all schedules of a cache.
type Schedules struct {
	running sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	all    map[string]*Schedule
	closed bool
}

// Start starts a schedule: the server reads samples ahead until the end of an epoch. The caller has
// entered. Errors: order.ErrInvalid and shm.ErrInvalid for wrong options; ErrManyPlans, ErrEnding.
func (s *Schedules) Start(c Cache, o Options, log *slog.Logger) (Status, error) {
	parts, err := o.complete(c.Segment().Samples)
	if err != nil {
		return Status{}, err
	}
	p := &Schedule{cache: c, all: s, log: log, options: o, parts: parts, wake: make(chan struct{}, 1),
		began: readsOf(c.Segment()), moved: time.Now(), requests: map[*fill.Request]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.queue = fill.NewQueue(true, p.held.Load)
	for _, part := range parts {
		p.total += part.Samples()
	}
	if err := s.add(p); err != nil {
		p.cancel()
		return Status{}, err
	}
	log.Info("a plan has begun", "plan", o.Name, "kind", o.Kind, "seed", o.Seed, "epoch", o.Epoch, "position",
		o.Position, "samples", p.total, "ahead", o.Ahead)
	return p.status(), nil
}

// add starts a schedule, and ends the one of the same name. Errors: ErrManyPlans, ErrEnding.
func (s *Schedules) add(p *Schedule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.all[p.options.Name]
	switch {
	case s.closed:
		return fill.ErrEnding
	case old != nil:
		old.stop()
	case len(s.all) >= maxSchedules:
		return fmt.Errorf("%w: it has %d already (%s); end one (DELETE), or give this one the name of one that it "+
			"is to replace", ErrManyPlans, len(s.all), s.names())
	}
	if s.all == nil {
		s.all = map[string]*Schedule{}
	}
	s.all[p.options.Name] = p
	s.running.Go(p.run)
	return nil
}

// names lists their names for messages. The caller holds mu.
func (s *Schedules) names() string {
	if len(s.all) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(s.all)), ", ")
}

// remove forgets a schedule that has ended.
func (s *Schedules) remove(p *Schedule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.options.Name] == p {
		delete(s.all, p.options.Name)
	}
}

// End ends the schedule of that name, or with "" all. Errors: ErrNoPlan.
func (s *Schedules) End(name string) (ended []string, err error) {
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

// Statuses describes all schedules, sorted by name.
func (s *Schedules) Statuses() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.all))
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		all = append(all, s.all[name].status())
	}
	return all
}

// Cancel ends all schedules without waiting. No other schedule can start afterwards.
func (s *Schedules) Cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, p := range s.all {
		p.stop()
	}
}

// Close is Cancel, and then waits until all have ended.
func (s *Schedules) Close() {
	s.Cancel()
	s.running.Wait()
}
