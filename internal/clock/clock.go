// Package clock tells times that are kept as numbers, by a clock that no one can set.
package clock

import "time"

var began = time.Now()

// Now returns the time since the program began. Unlike Unix times, it goes on evenly when the time of day is set.
func Now() time.Duration { return time.Since(began) }
