package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// maxBody bounds the body that operators send for a cache.
const maxBody = 64 << 10

// postCache makes a cache: 201, with the answer of GET.
func (s *Host) postCache(w http.ResponseWriter, r *http.Request) {
	o, ok := s.takeCache(w, r)
	if !ok {
		return
	}
	if err := s.Add(r.Context(), o); err != nil {
		s.refuse(w, "make", o.Name, err)
		return
	}
	w.Header().Set("Location", "/v1/caches/"+url.PathEscape(o.Name))
	s.answerOne(w, o.Name, http.StatusCreated)
}

// putCache replaces a cache: 200, with the answer of GET.
func (s *Host) putCache(w http.ResponseWriter, r *http.Request) {
	o, ok := s.takeCache(w, r)
	if !ok {
		return
	}
	if name := r.PathValue("name"); o.Name != name {
		fail(w, http.StatusBadRequest, fmt.Sprintf("the path names cache %q, and the body %q; a cache keeps its name",
			name, o.Name))
		return
	}
	if err := s.Replace(r.Context(), o); err != nil {
		s.refuse(w, "replace", o.Name, err)
		return
	}
	s.answerOne(w, o.Name, http.StatusOK)
}

// deleteCache removes a cache, and with ?unlink=true its segment: 200, with what was done.
func (s *Host) deleteCache(w http.ResponseWriter, r *http.Request) {
	unlink := false
	for key, values := range r.URL.Query() {
		var err error
		if unlink, err = strconv.ParseBool(values[0]); key != "unlink" || len(values) != 1 || err != nil {
			fail(w, http.StatusBadRequest, fmt.Sprintf("?%s=%s: the only parameter is unlink, true or false", key,
				values[0]))
			return
		}
	}
	name := r.PathValue("name")
	if err := s.Remove(name, unlink); err != nil {
		s.refuse(w, "remove", name, err)
		return
	}
	reply(w, http.StatusOK, map[string]any{"name": name, "removed": true, "unlinked": unlink})
}

// takeBody reads the body of a request. what names the thing that it describes. false: takeBody has
// answered with an error.
func takeBody(w http.ResponseWriter, r *http.Request, what string) (body []byte, ok bool) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if len(body) > maxBody {
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("a %s is described by at most %d bytes", what, maxBody))
		return nil, false
	}
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("reading the body: %v", err))
		return nil, false
	}
	return body, true
}

// takeCache reads the body of a request for a cache. false: takeCache has answered with an error.
func (s *Host) takeCache(w http.ResponseWriter, r *http.Request) (o served.Options, ok bool) {
	body, ok := takeBody(w, r, "cache")
	if !ok {
		return o, false
	}
	if s.Parse == nil {
		fail(w, http.StatusNotImplemented, "only the program of this server adds caches")
		return o, false
	}
	o, err := s.Parse(body)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return o, false
	}
	endless(w) // a large source takes long to open
	return o, true
}

// refusals give the HTTP status for an error of a change; 500 for all others.
var refusals = []struct {
	status int
	errors []error
}{
	{http.StatusNotFound, []error{served.ErrNoCache, prefetch.ErrNoPlan}},
	{http.StatusConflict, []error{served.ErrHasCache, served.ErrServed, prefetch.ErrManyPlans, shm.ErrExists}},
	{http.StatusInsufficientStorage, []error{shm.ErrMemory, shm.ErrFull, unix.ENOSPC, unix.EDQUOT}},
	{http.StatusServiceUnavailable, []error{fill.ErrEnding, context.Canceled}},
	{http.StatusBadRequest, []error{shm.ErrInvalid, order.ErrInvalid, shm.ErrPermission, shm.ErrFormat,
		shm.ErrVersion, source.ErrInvalid, source.ErrCorrupt, source.ErrChanged, unix.ENOENT, unix.ENOTDIR,
		// errors of a path in the body
		unix.EACCES, unix.ENAMETOOLONG, unix.ELOOP, unix.EISDIR, unix.ENXIO, unix.EINVAL}},
}

// refuse answers a change that failed.
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
