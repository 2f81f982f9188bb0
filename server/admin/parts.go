package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/stocached/stocached/source"

	"go.yaml.in/yaml/v3"
)

// Part is what a program sends to learn which objects an address has, or to read a part of one.
type Part struct {
	Source source.Settings `yaml:"source"` // path: of an object, or what names begin with; remote
	Keys   *Keys           `yaml:"keys"`   // as of Opening
	List   bool            `yaml:"list"`   // all objects whose names begin with path, else the one of this name
	Bytes  int64           `yaml:"bytes"`  // the object's length when it was opened
	Tag    int64           `yaml:"tag"`
	At     int64           `yaml:"at"`
	Size   int             `yaml:"size"`
	More   int             `yaml:"more"` // bytes after these that are welcome
}

// Ahead is what a program sends for parts that it will ask for soon.
type Ahead struct {
	Source source.Settings `yaml:"source"` // remote
	Keys   *Keys           `yaml:"keys"`
	Parts  []struct {
		Path  string `yaml:"path"`
		Bytes int64  `yaml:"bytes"`
		Tag   int64  `yaml:"tag"`
		At    int64  `yaml:"at"`
		Size  int    `yaml:"size"`
	} `yaml:"parts"`
}

// Object is an object in a list: its name, its bytes and its tag.
type Object struct {
	Name  string
	Stamp source.Stamp
}

// MarshalJSON is short: there may be millions.
func (o Object) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{o.Name, o.Stamp.Bytes, o.Stamp.ModifiedNs})
}

// MostPart is the most bytes of a part.
const MostPart = 16 << 20

// partTimeout is how long a program may take for a part. Another request gets it again.
const partTimeout = time.Minute

// part reads a request.
func part(w http.ResponseWriter, r *http.Request) (p Part, err error) {
	endless(w) // a list, or a bucket that is busy, takes minutes
	if err := request(w, r, &p); err != nil {
		return p, err
	}
	return p, cmp.Or(checkPart(p.At, p.Size), checkPart(p.At, p.More), checkPart(p.At, p.Size+p.More))
}

func request(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOpening))
	if err != nil || yaml.Unmarshal(body, into) != nil { // an error could quote a key
		return fmt.Errorf("%w: the request is no JSON object of source and keys, of at most %d bytes", source.ErrInvalid, maxOpening)
	}
	return nil
}

func checkPart(at int64, size int) error {
	if at < 0 || at > math.MaxInt64-MostPart || size < 0 || size > MostPart {
		return fmt.Errorf("%w: a part of %d bytes at %d; %d are the most", source.ErrInvalid, size, at, MostPart)
	}
	return nil
}

// postAhead begins to read parts.
func (s *Host) postAhead(w http.ResponseWriter, r *http.Request) {
	var a Ahead
	err := request(w, r, &a)
	for _, p := range a.Parts {
		err = cmp.Or(err, checkPart(p.At, p.Size))
	}
	if err == nil {
		err = s.Parts.Ahead(r.Context(), a)
	}
	if err != nil {
		fail(w, statusOf(err), err.Error())
		return
	}
	reply(w, http.StatusOK, map[string]int{"parts": len(a.Parts)})
}

// postObjects lists the objects of an address.
func (s *Host) postObjects(w http.ResponseWriter, r *http.Request) {
	p, err := part(w, r)
	objects := []Object{}
	if err == nil {
		err = s.Parts.List(r.Context(), p, func(o Object) { objects = append(objects, o) })
	}
	if err != nil {
		fail(w, statusOf(err), err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(map[string][]Object{"objects": objects}); err != nil {
		return // the program is gone
	}
}

// postPart reads a part of an object.
func (s *Host) postPart(w http.ResponseWriter, r *http.Request) {
	p, err := part(w, r)
	if err == nil {
		err = s.Parts.Read(r.Context(), p, func(data []byte) { give(w, data) })
	}
	if err != nil {
		fail(w, statusOf(err), err.Error())
	}
}

// give answers with the bytes of a part. A program that does not take them must not keep others waiting.
func give(w http.ResponseWriter, data []byte) {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(partTimeout)); err != nil {
		return // the program is gone
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if _, err := w.Write(data); err != nil {
		return // likewise
	}
}
