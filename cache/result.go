package cache

import "fmt"

// Result is the result of a set or a claim. Its numbers are those of enum stoc_code.
type Result uint8

// In an arena that evicts, Busy and Full may come after other samples have gone, and after the old version of
// an overwritten one.
const (
	Stored Result = iota // stored. Claim: claimed. Clear: cleared
	Exists               // the sample is READY already; the call did nothing
	Busy                 // another client fills it, a clear is running, or 32 claims are open; the call did nothing
	Full                 // no free slot, no arena space, or memory is short; the call did nothing
	Out                  // the sample can have no slot (first-indices, or Keep leaves it out); the call did nothing
)

var resultNames = [...]string{"STORED", "EXISTS", "BUSY", "FULL", "OUT"}

// String returns the result's name in the documents.
func (r Result) String() string {
	if int(r) < len(resultNames) {
		return resultNames[r]
	}
	return fmt.Sprintf("result %d", uint8(r))
}

// Flags change what Set and Claim do.
type Flags uint8

const (
	Overwrite Flags = 1 << iota // replace a READY sample instead of returning Exists
	Wait                        // poll while Busy, up to a minute; then return Busy
)

const flagsKnown = Overwrite | Wait
