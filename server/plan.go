package server

import (
	"errors"
	"fmt"

	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/server/served"
)

// Plan starts a plan: the server reads the samples of a cache ahead, in the order of a job, until
// the end of its epoch. Errors: ErrNoCache, ErrManyPlans, ErrEnding; order.ErrInvalid and
// shm.ErrInvalid for wrong options.
func (s *Server) Plan(name string, o PlanOptions) error {
	_, err := s.plan(name, o)
	return err
}

// plan is Plan, and also returns the first status of the plan.
func (s *Server) plan(name string, o PlanOptions) (prefetch.Status, error) {
	h, err := s.require(name)
	if err != nil {
		return prefetch.Status{}, err
	}
	defer h.Leave()
	status, err := h.Schedules.Start(h, o, h.Log)
	if errors.Is(err, ErrManyPlans) || errors.Is(err, ErrEnding) {
		err = fmt.Errorf("cache %s: %w", name, err)
	} else if err != nil {
		err = fmt.Errorf("a plan for cache %s: %w", name, err)
	}
	return status, err
}

// require enters a cache; the caller must leave it. Errors: ErrNoCache, ErrEnding.
func (s *Server) require(name string) (*served.Cache, error) {
	if h := s.enter(name); h != nil {
		return h, nil
	}
	if s.ending() {
		return nil, ErrEnding
	}
	return nil, s.noCache(name)
}

// EndPlan ends one plan of a cache, or all of them if plan is "", and returns their names. Errors:
// ErrNoCache, ErrNoPlan, ErrEnding.
func (s *Server) EndPlan(name, plan string) (ended []string, err error) {
	h, err := s.require(name)
	if err != nil {
		return nil, err
	}
	defer h.Leave()
	return h.Schedules.End(plan)
}
