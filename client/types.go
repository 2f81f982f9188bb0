package client

import "github.com/stocached/stocached/cache"

// The types of package cache that programs meet. `go doc` shows an alias without its fields and methods, so each comment
// names them.

// GatherOptions say how Gather copies. The zero value copies whole samples, one after the other.
//
//   - Field string: the name of the only field to copy
//   - Stride int: bytes from row to row; 0: the bytes of a row
//   - Hit []bool: here Gather says which samples were READY; nil: it does not
//   - Threads int: at most so many goroutines copy; 0: the caller's only
type GatherOptions = cache.GatherOptions

// Result says how Set and Claim ended: Stored, Exists, Busy, Full or Out. Method String returns its name.
type Result = cache.Result

// Flags of Set and Claim: Overwrite, Wait, or both.
type Flags = cache.Flags

// State is what a sample is now: StateEmpty, StateWriting, StateReady, StateOut or StateCorrupt. Method String returns
// its name.
type State = cache.State

// Stats are sums over all clients, past ones included, and the result of a pass over the index. All are uint64 but
// Costs.
//
//   - Hits, Misses: samples that get, view and gather have found READY, and those that were not
//   - Stored, StoredBytes: samples published, overwrites too, and their bytes
//   - Exists, Busy, Full, Out: sets that stored nothing, by their result
//   - Evicted, Replaced: samples that went for others, and of these, those of the last epoch
//   - Passed: samples outside the schema, which were not cached; of a Disk: calls that failed
//   - Recovered, Aborted: claims of dead clients, and claims that their own client gave up
//   - Retried: copies made again because the sample changed; Lost, Corrupt: what broke the protocol
//   - Ready, ReadyBytes: samples that are READY now
//   - AllocatedBytes: memory of the cache; ArenaNextBytes, ArenaLostBytes, ArenaFreeBytes: of an arena that is taken,
//     lost until a clear, and free
//   - ClientsLive, ClientsEnded: records of clients; Clears: how often the cache was cleared
//   - Costs: what loads took: Known, KnownSeconds, Ready, SavedSeconds, FirstCome, LoadSeconds, and method
//     FirstComeSeconds
type Stats = cache.Stats

// Cost is what the load of a sample took, in one byte; 0: unknown. Method Nanoseconds returns the time, and Confirmed
// says whether it is an average over several loads. Policies use its methods Loaded, Doubtful and Believed.
type Cost = cache.Cost

// ClientInfo is one client of a cache, or the last client of a record. It is for display.
//
//   - Record uint32, Registrations uint64: the record, and how many clients have had it
//   - Live bool: the client lives. PID uint32: 0 after a clean close. PIDNamespace, StartTicks uint64: which process
//   - Kind uint32: 1 Go, 2 C, 3 Python, 4 server. Label string: the name of the program
//   - Registered time.Time: when it attached. Claims int: samples that it fills
type ClientInfo = cache.ClientInfo

// Claim is a sample that this client fills in pieces. WriteAt writes a piece; Publish ends the claim and makes the
// sample READY, PublishLoaded also tells what its load took; Abort gives it up. Sample and Len return its index and
// length.
type Claim = cache.Claim

// Verification is the result of Verify: Checked samples were READY, Corrupt of them have other bytes than were stored,
// and Bad is the first of those; -1: there is none.
type Verification = cache.Verification
