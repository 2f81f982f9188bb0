package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
)

// maxBody bounds the body that operators send for a plan.
const maxBody = 64 << 10

// postPlan starts a plan: 201, with the answer of GET.
func (s *Host) postPlan(w http.ResponseWriter, r *http.Request) {
	body, ok := takeBody(w, r)
	if !ok {
		return
	}
	var o prefetch.Options
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(&o)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more after it")
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest,
			fmt.Sprintf(`a plan is JSON such as {"kind": "shuffled", "seed": 7, "epoch": 0}: %v`, err))
		return
	}
	name := r.PathValue("name")
	answer, err := s.StartPlan(name, o)
	if err != nil {
		s.refuse(w, "plan", name, err)
		return
	}
	reply(w, http.StatusCreated, answer)
}

// getPlans lists the plans of a cache.
func (s *Host) getPlans(w http.ResponseWriter, r *http.Request) {
	h, err := s.Require(r.PathValue("name"))
	if err != nil {
		s.refuse(w, "list plans", r.PathValue("name"), err)
		return
	}
	answers := h.Schedules.Statuses()
	h.Leave()
	reply(w, http.StatusOK, answers)
}

// deletePlans ends the plans of a cache, or with ?plan=NAME one of them: 200, with the names of the
// ended plans.
func (s *Host) deletePlans(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for key := range query {
		if key != "plan" || len(query[key]) != 1 || query.Get(key) == "" {
			fail(w, http.StatusBadRequest, fmt.Sprintf("?%s=%s: the only parameter is plan, the name of a plan", key,
				query.Get(key)))
			return
		}
	}
	name := r.PathValue("name")
	ended, err := s.EndPlan(name, query.Get("plan"))
	if err != nil {
		s.refuse(w, "end plans", name, err)
		return
	}
	reply(w, http.StatusOK, map[string]any{"name": name, "ended": ended})
}

// takeBody reads the body of a request for a plan. false: takeBody has answered with an error.
func takeBody(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if len(body) > maxBody {
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("a plan is described by at most %d bytes", maxBody))
		return nil, false
	}
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("reading the body: %v", err))
		return nil, false
	}
	return body, true
}

// refusals give the HTTP status for an error of a plan; 500 for all others.
var refusals = []struct {
	status int
	errors []error
}{
	{http.StatusNotFound, []error{served.ErrNoCache, prefetch.ErrNoPlan}},
	{http.StatusConflict, []error{prefetch.ErrManyPlans}},
	{http.StatusServiceUnavailable, []error{fill.ErrEnding}},
	{http.StatusBadRequest, []error{shm.ErrInvalid, order.ErrInvalid}},
}

// refuse answers a request about plans that failed.
func (s *Host) refuse(w http.ResponseWriter, what, name string, err error) {
	if about := s.refusals.Add("change", what, "cache", name, "error", err); about != nil {
		s.Log.Warn("an operator was refused", about...)
	}
	for _, r := range refusals {
		if slices.ContainsFunc(r.errors, func(target error) bool { return errors.Is(err, target) }) {
			fail(w, r.status, err.Error())
			return
		}
	}
	fail(w, http.StatusInternalServerError, err.Error())
}
