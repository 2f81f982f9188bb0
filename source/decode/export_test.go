package decode

import "time"

// SetDecodeLimit changes how long a helper may take. It returns a function that undoes it.
func SetDecodeLimit(limit time.Duration) (undo func()) {
	before := decodeLimit
	decodeLimit = limit
	return func() { decodeLimit = before }
}
