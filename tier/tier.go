// Package tier puts tiers between a cache and its source: stores of samples that are slower than
// the segment and faster than the source, or that other machines share.
//
// Each kind of tier has its own folder; package kinds opens them by their settings. A Set (set.go)
// has the tiers of one cache and their queues of writes. Around (around.go) makes a source of a
// source and a Set. docs/spec/tiers.md says what must hold.
package tier

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/stocached/stocached/source"
)

// Tier holds samples of one dataset. All methods are safe for concurrent use, Close too: later
// calls find nothing. No method reports a failure: a tier that fails is left out.
type Tier interface {
	// Get reads sample i of n bytes into dst, which has n + Spare bytes. With About.AnySize, n is the
	// most that the sample may have, and length what it has; else they are equal. Get returns when nothing
	// writes to dst any more, and never Claimed or Busy. After any other result than Hit, dst may
	// hold anything.
	Get(ctx context.Context, i, n int, dst []byte) (length int, r Result)
	// Accepts says whether a Put of sample i of n bytes makes sense now. false: it is counted.
	Accepts(i, n int) bool
	// Put keeps a sample. It may write to the Spare bytes after it, up to its capacity.
	Put(ctx context.Context, i int, sample []byte)
	// Status describes the tier. The Set adds the counts of its queue.
	Status() Status
	Close() error
}

// Knowing is a Tier that knows at once which samples it has. One that machines share does not.
type Knowing interface {
	Tier
	Has(i int) bool
}

// Sized is a Tier that knows how many samples it holds. 0: they differ in size.
type Sized interface {
	Tier
	Samples() int
}

// Shared is a Tier that several machines share. They load each sample once, by leases.
type Shared interface {
	Tier
	// Claim is Get. If the tier has no such sample, Claim asks for the right to load it. Claimed: the
	// caller has it, and MUST call Put or Release. Busy: another machine has it.
	Claim(ctx context.Context, i, n int, dst []byte) (length int, r Result)
	// Release gives the right to load a sample back. It does not wait.
	Release(i int)
	// LongestWait is how long a read waits for the load of another machine.
	LongestWait() time.Duration
	// Waited counts a read that begins to wait.
	Waited()
	// GaveUp counts a read that has waited for too long.
	GaveUp()
}

// Spare is how many bytes a Get needs beyond the sample: for lengths and checksums of a tier, and
// for the end of a line of its protocol.
const Spare = source.Spare

// Result of a Get or a Claim.
type Result int

// Results.
const (
	Miss    Result = iota // the tier has no such sample
	Hit                   // dst has the sample
	Out                   // the tier, or its node for this sample, is left out
	Claimed               // the caller loads the sample
	Busy                  // another machine loads it
)

// Kind is a kind of tier.
type Kind struct {
	Name     string          // the value of the key kind
	Defaults source.Settings // values of the kind's own keys that have one
	Shared   bool            // its tiers are Shared; else they are Knowing
	// Check checks settings as Open does, and opens nothing.
	Check func(s source.Settings, about About) error
	// Open opens a tier, and does not wait for its servers. The settings have neither kind nor
	// memory. Errors: source.ErrInvalid, errors of files that the settings name.
	Open func(s source.Settings, about About) (Tier, error)
	// Examine asks the servers of a tier what an operator should change.
	Examine func(ctx context.Context, s source.Settings, about About) ([]Finding, error)
}

// About is what a tier knows of its cache.
type About struct {
	Cache string // its name
	Info  source.Info
	Log   *slog.Logger
	// Within is how long a read may take, with its waits for a tier. 0: for ever.
	Within time.Duration
}

// AnySize says whether only the tiers know how many bytes a sample has: programs load it, and samples differ.
func (a *About) AnySize() bool { return a.Info.Programs && a.Info.Schema.Variable }

// Finding is what a tier's server says about one thing.
type Finding struct {
	Where  string // its address
	What   string // what was asked: a setting of it or of the tier
	Answer string
	Change string // what to change; "": it is good
}

// ErrClosed is the reason of a tier that was closed.
var ErrClosed = errors.New("the tier is closed")

// Status describes a tier to operators. Fields are never renamed.
type Status struct {
	Kind     string `json:"kind"`
	Hits     uint64 `json:"hits"`
	HitBytes uint64 `json:"hit_bytes"`
	// samples that the tier had not when it was asked first. One that another machine loads then is a hit too.
	Misses uint64 `json:"misses"`
	// reads that did not ask the tier, or got no answer, because a node was left out
	LeftOut    uint64 `json:"left_out"`
	Writes     uint64 `json:"writes"`
	WriteBytes uint64 `json:"write_bytes"`
	// samples that were not written: the queue was full, or the node left out or full
	Dropped  uint64 `json:"dropped"`
	Refused  uint64 `json:"refused"`  // writes that a full node has refused
	Poisoned uint64 `json:"poisoned"` // values whose checks failed; they were removed
	Openings uint64 `json:"openings"` // openings of circuit breakers
	Waited   uint64 `json:"waited"`   // reads that waited for the load of another machine
	GaveUp   uint64 `json:"gave_up"`  // waiters that gave up, because they waited for too long
	Queued   int64  `json:"queued_bytes"`
	// a node for each server that the tier has used
	Nodes []NodeStatus `json:"nodes"`
	Notes []string     `json:"notes,omitempty"` // what an operator should know
}

// NodeStatus describes a server of a tier. Fields are never renamed.
type NodeStatus struct {
	Address string  `json:"address"`
	LeftOut bool    `json:"left_out"`
	Because string  `json:"because,omitempty"` // why it is left out
	Seconds float64 `json:"seconds,omitempty"` // for so long
	Full    bool    `json:"full"`              // it has refused a write, and gets none for a while
}
