package cache

import (
	"fmt"

	"github.com/stocached/stocached/shm"
)

// State is the state of a sample for callers. Its numbers are those of enum stoc_state_of.
type State uint8

const (
	StateEmpty   State = iota
	StateWriting       // a client fills it, or died while it filled it
	StateReady
	StateOut     // it can have no slot (first-indices)
	StateCorrupt // its word has another state
)

var stateNames = [...]string{"EMPTY", "WRITING", "READY", "OUT", "CORRUPT"}

// String returns the state's name in the documents.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// State returns the current state of a sample, and counts nothing. Errors: ErrIndex, ErrClosed.
func (c *Cache) State(i int) (State, error) {
	l, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer l.leave()
	if err := c.checkIndex(i); err != nil {
		return 0, err
	}
	return c.state(uint64(i)), nil
}

// States writes the states of the samples from first on into dst, and counts nothing. Errors:
// ErrIndex unless all of them are samples; ErrClosed.
func (c *Cache) States(first int, dst []State) error {
	l, err := c.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	if err := c.checkRange(first, len(dst)); err != nil {
		return err
	}
	for k := range dst {
		dst[k] = c.state(uint64(first + k))
	}
	return nil
}

// checkRange returns ErrIndex unless first..first+n-1 are samples.
func (c *Cache) checkRange(first, n int) error {
	if first < 0 || n < 0 || uint64(first) > c.samples || uint64(n) > c.samples-uint64(first) {
		return fmt.Errorf("%w: %d samples from %d on, the cache has samples 0 to %d", shm.ErrIndex, n, first, c.samples-1)
	}
	return nil
}

func (c *Cache) state(sample uint64) State {
	switch s := shm.Word(c.seg.Word(sample).Load()).State(); {
	case !c.possible(s):
		return StateCorrupt
	case s == shm.Retiring: // as a sample that is being filled: it will be EMPTY, or READY again
		return StateWriting
	case s != shm.Empty:
		return State(s)
	}
	if !c.admits(sample) {
		return StateOut
	}
	return StateEmpty
}
