package server

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/source"
)

// lastReload is the result of the last reload. Until the first one it is that of the start.
type lastReload struct {
	at  time.Time
	err error
}

// Reloaded records the result of a reload: of Reload, or of what its caller did before it, such as to read the file.
func (s *Server) Reloaded(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reloaded = lastReload{time.Now(), err}
}

// LastReload returns the time and the error of the last reload, or the time of the start.
func (s *Server) LastReload() (at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reloaded.at, s.reloaded.err
}

// reloadProblem returns a line if the last reload failed.
func (s *Server) reloadProblem() (lines []string) {
	at, err := s.LastReload()
	if err == nil {
		return nil
	}
	did := "was not applied"
	if errors.Is(err, ErrPartly) {
		did = "was applied in part"
	}
	return []string{fmt.Sprintf("reload: the configuration of %v ago %s: %s",
		cmp.Or(time.Since(at).Round(time.Second), time.Second), did, source.OneLine(err.Error()))}
}

// Problems returns a line for each thing of the server that an operator should know or change: caches that are left out,
// a reload that failed, and reads beside those of served caches that fail.
func (s *Server) Problems() []string {
	lines := append(s.LeftOut(), s.reloadProblem()...)
	for _, b := range s.Beside() {
		who := "cache " + b.Cache
		if b.Counts != nil {
			who = b.Cache
		}
		f := served.Stats{Retrying: b.Failures.Retrying(), Failures: b.Failures.Now()}
		f.Troubles(nil, func(what, text string) {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", what, who, source.OneLine(text)))
		})
	}
	return lines
}
