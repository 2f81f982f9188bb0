// Package fewlines bounds how many lines of one kind a log gets in a minute, so that a client, or damaged data, cannot
// fill a disk.
package fewlines

import (
	"sync"
	"time"
)

// PerMinute is the most lines of one kind in a minute.
const PerMinute = 10

// Limit bounds one kind of line. The zero value is ready to use. Safe for concurrent use.
type Limit struct {
	mu     sync.Mutex
	minute time.Time // when the present minute began
	lines  int       // in it
	left   int       // lines left out since the last line
}

// Add returns the attributes of a line, with the number of lines that were left out before it; nil: leave it out too.
func (l *Limit) Add(about ...any) []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.minute.IsZero() || now.Sub(l.minute) >= time.Minute {
		l.minute, l.lines = now, 0
	}
	if l.lines == PerMinute {
		l.left++
		return nil
	}
	l.lines++
	if l.left > 0 {
		about = append(about, "not_logged", l.left)
	}
	l.left = 0
	return about
}
