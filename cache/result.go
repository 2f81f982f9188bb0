package cache

import "fmt"

// Result is the answer of a set or a claim. Same numbers as enum stoc_code.
type Result uint8

const (
	Stored Result = iota // stored; of Claim: claimed, go on; of Clear: cleared
	Exists               // the sample is READY already; nothing was done
	Busy                 // another client is filling it, a clear is under way, or 32 claims are open; nothing was done
	Full                 // no free slot, no arena space, or memory is short; nothing was done
	Out                  // the sample can have no slot (first-indices); nothing was done
)

var resultNames = [...]string{"STORED", "EXISTS", "BUSY", "FULL", "OUT"}

// String returns the result's name as the documents spell it.
func (r Result) String() string {
	if int(r) < len(resultNames) {
		return resultNames[r]
	}
	return fmt.Sprintf("result %d", uint8(r))
}

// Flags change what Set and Claim do.
type Flags uint8

const (
	Overwrite Flags = 1 << iota // replace a READY sample instead of answering Exists
	Wait                        // wait while Busy, polling, up to a minute; then Busy
)

const flagsKnown = Overwrite | Wait
