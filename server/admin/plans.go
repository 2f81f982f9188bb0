package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/stocached/stocached/server/prefetch"
)

// postPlan starts a plan: 201, with the answer of GET.
func (s *Host) postPlan(w http.ResponseWriter, r *http.Request) {
	body, ok := takeBody(w, r, "plan")
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
