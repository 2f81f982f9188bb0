// Package cache is the slot protocol on a segment: which client may change which word, in which
// order. docs/spec/protocol.md is the normative text and gives the reason of each step.
// cclient/src/protocol implements the same in C.
//
// A Cache is one attached client of a shm.Segment. A read is plain memory access. View returns
// memory of the segment. Get and Gather copy, and check after the copy that the sample has not
// changed, so a copy is never torn. Set stores a sample that is not READY. It waits only with the
// flag Wait, and returns a Result. A client that meets a claim of a dead client reclaims it.
//
// # Views
//
// A view is memory of the cache, mapped read-only: a write to it is a fault. It is valid until the
// segment is closed. Its bytes change only if a client clears the cache or overwrites the sample.
// Then it may show the old bytes, the new ones or a mix. A cache that evicts gives out no views:
// View returns ErrInvalid, and Ready yields copies.
//
// # Concurrency
//
// All methods of a Cache are safe for concurrent use, Close too. A Cache has at most 32 open
// claims; the result of another one is Busy.
//
// Programs import package client, which adds names, GetOrLoad and iterators.
package cache
