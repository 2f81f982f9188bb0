package fewlines

import (
	"testing"
	"testing/synctest"
	"time"
)

// Ensure that a minute has few lines, and that the next line says how many were left out.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limit
		for i := range 3 * PerMinute {
			if line := l.Add("n", i); (line != nil) != (i < PerMinute) {
				t.Errorf("line %d: %v", i, line)
			}
		}
		time.Sleep(time.Minute)
		if line := l.Add("n", 0); len(line) != 4 || line[2] != "not_logged" || line[3] != 2*PerMinute {
			t.Error(line)
		}
		if line := l.Add("n", 1); len(line) != 2 {
			t.Error(line)
		}
	})
}
