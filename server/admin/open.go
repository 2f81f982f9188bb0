package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Opening is what a program sends to open an address.
type Opening struct {
	Source source.Settings `yaml:"source"` // kind, path and the kind's own keys
	Keys   *Keys           `yaml:"keys"`   // keys for S3; nil: the server looks for them as always
	Name   string          `yaml:"name"`   // the name of a cache that the program has; "": none
	Files  string          `yaml:"files"`  // a regular expression of names of objects that the program reads itself; "": none
}

// Keys are access keys of S3.
type Keys struct {
	ID     string `yaml:"id"`
	Secret string `yaml:"secret"`
	Token  string `yaml:"token"`
}

// Opened is what the program gets.
type Opened struct {
	Name    string          `json:"name"`              // the name of the cache
	Classes json.RawMessage `json:"classes,omitempty"` // names of labels by their number
	Advice  []string        `json:"advice,omitempty"`  // about the data
}

const maxOpening = 1 << 20 // bytes of a request to open an address

// postOpen opens an address for a program.
func (s *Host) postOpen(w http.ResponseWriter, r *http.Request) {
	endless(w) // a long list takes minutes
	var o Opening
	err := request(w, r, &o)
	var opened Opened
	if err == nil {
		opened, err = s.Open(r.Context(), o)
	}
	if file := (*source.FileError)(nil); errors.As(err, &file) {
		reply(w, http.StatusOK, map[string]string{"file": file.Name})
		return
	}
	if err != nil {
		// The program knows what it has asked for.
		said := strings.TrimPrefix(err.Error(), fmt.Sprintf("source of kind %s: ", o.Source["kind"]))
		fail(w, statusOf(err), strings.TrimPrefix(said, source.ErrInvalid.Error()+": "))
		return
	}
	reply(w, http.StatusOK, opened)
}

// statusOf is the status of an answer that says why an address does not open.
func statusOf(err error) int {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, shm.ErrPermission):
		return http.StatusForbidden
	case errors.Is(err, source.ErrChanged):
		return http.StatusConflict
	case errors.Is(err, source.ErrInvalid), errors.Is(err, shm.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, fill.ErrEnding):
		return http.StatusServiceUnavailable
	case errors.Is(err, shm.ErrMemory):
		return http.StatusInsufficientStorage
	}
	return http.StatusBadGateway
}
