package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/server/admin"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
)

// OnDemand are the options and the state of a server without a configuration. Programs open addresses, and each
// address that a program uses is a cache.
type OnDemand struct {
	By   string                         // who started it
	Idle time.Duration                  // how long it stays without a program
	End  func()                         // ends the server
	Keys func(id, secret, token string) // takes keys of S3 from a program

	opens  singleflight.Group
	mu     sync.Mutex // protects the fields below
	under  int        // requests of programs under way
	last   time.Time  // the end of the last one
	places map[string]*openPlace
	soon   *soonParts
	room   *semaphore.Weighted // bytes of parts

	failures *wrap.Failures // failures of parts
	counts   wrap.Counts    // counts of parts
}

const (
	addressParallel = 32
	longestLabel    = 60
)

// readAhead is what the server reads ahead of an address, if the program does not say it.
var readAhead = map[string]any{"size": "64MiB", "total": "256MiB", "readers": addressParallel}

// openAddress opens the address of a program and lists it. Programs that open the same address at the same time share one
// list. The same data have the same name, and other data another one. A program that still has a cache of this server only
// hands over keys. Errors: those of the source; FileError; ErrInvalid; ErrMemory; ErrEnding.
func (s *Server) openAddress(ctx context.Context, o admin.Opening) (admin.Opened, error) {
	d := s.onDemand
	defer d.request()()
	if s.ending() {
		return admin.Opened{}, ErrEnding
	}
	path, _ := o.Source["path"].(string)
	if !source.IsRemote(path) {
		return admin.Opened{}, noAddress(o.Source["path"])
	}
	if o.Keys != nil {
		d.Keys(o.Keys.ID, o.Keys.Secret, o.Keys.Token)
	}
	if o.Name != "" && s.Has(o.Name) {
		return admin.Opened{Name: o.Name}, nil
	}
	digest, err := digestOf(o.Source)
	if err != nil {
		return admin.Opened{}, err
	}
	// Other programs wait for the same list, so the end of the first of them does not end it.
	ctx = context.WithoutCancel(ctx)
	if o.Files != "" {
		files, err := regexp.Compile(o.Files)
		if err != nil {
			return admin.Opened{}, fmt.Errorf("%w: files: %w", source.ErrInvalid, err)
		}
		ctx = source.Elsewhere(ctx, files.MatchString)
	}
	opened, err, _ := d.opens.Do(digest+o.Files, func() (any, error) {
		return s.serveAddress(ctx, o.Source, label(path)+"-"+digest)
	})
	if err != nil {
		return admin.Opened{}, err
	}
	return opened.(admin.Opened), nil
}

func noAddress(path any) error {
	return fmt.Errorf("%w: source.path is %s; a server on demand opens addresses, such as s3://bucket/name", source.ErrInvalid,
		source.Show(path))
}

// request notes that a program uses the server, until the returned function is called.
func (d *OnDemand) request() (end func()) {
	d.mu.Lock()
	d.under++
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.under, d.last = d.under-1, time.Now()
	}
}

// serveAddress serves the data that an address has now.
func (s *Server) serveAddress(ctx context.Context, settings source.Settings, name string) (admin.Opened, error) {
	settings = maps.Clone(settings)
	if _, given := settings["read_ahead"]; !given {
		settings["read_ahead"] = readAhead
	}
	o := CacheOptions{Name: name, Label: "on demand, by " + s.onDemand.By, Source: settings, Passing: true,
		Policy: shm.PolicyFirstCome, Unnamed: true, Parallel: addressParallel, RemoveUnused: s.onDemand.Idle}
	p, err := s.open(ctx, o)
	if err != nil {
		return admin.Opened{}, cmp.Or(errors.Unwrap(err), err) // programs know the address, and not the name
	}
	state := sha256.Sum256([]byte(p.Fingerprint()))
	p.Options.Name += "-" + hex.EncodeToString(state[:6])
	opened := admin.Opened{Name: p.Options.Name}
	for _, note := range p.Notes() {
		if note.Name == source.ClassesNote {
			opened.Classes = json.RawMessage(note.Text)
		}
		if note.Data {
			opened.Advice = append(opened.Advice, note.Text)
		}
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	if s.cache(p.Options.Name) == nil {
		if err = checkCapacity(s.total, s.served(), []*served.Prepared{p}); err == nil {
			err = s.begin(p, new(shm.Others))
		}
		if err == nil {
			return opened, nil
		}
	}
	served.CloseAll(s.log, p)
	return opened, err
}

// digestOf tells settings apart.
func digestOf(settings source.Settings) (string, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return "", fmt.Errorf("%w: the settings of the source: %w", source.ErrInvalid, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6]), nil
}

// label is the part of an address that people know it by, of the characters of a name: its bucket or host, and its path.
// It has no user, password or query.
func label(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	rest, _, _ = strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	text := strings.Map(func(r rune) rune {
		if r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, host[strings.LastIndex(host, "@")+1:]+"-"+path)
	text = strings.Trim(text, "-")
	if text == "" {
		return "address"
	}
	return strings.Trim(text[:min(len(text), longestLabel)], "-")
}

// leave ends a cache that no program uses.
func (s *Server) leave(h *served.Cache) {
	if s.onDemand.busy() {
		return // the janitor tries again
	}
	s.leaveUnused(h, func() {
		s.mu.Lock()
		delete(s.caches, h.Name)
		s.mu.Unlock()
		h.CloseSource()
		h.Log.Info("ended, as no program uses it")
	})
}

// busy says whether a program opens an address, or did so a moment ago and may not have attached yet.
func (d *OnDemand) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.under > 0 || time.Since(d.last) < d.Idle
}

// isIdle says whether no program uses the server.
func (s *Server) isIdle() bool {
	if s.onDemand.busy() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.caches) == 0
}
