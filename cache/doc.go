// Package cache is the slot protocol on a segment: who may change which word, in which order. docs/spec/protocol.md is the normative text and
// explains why each step is where it is; cclient/stocached.c is the same in C.
//
// A Cache is one attached client of a shm.Segment. Reading is plain memory access: View returns memory of the segment, Get and Gather copy and
// check afterwards that the sample did not change underneath, so that a copy is never torn. Set stores a sample if nobody has; it never
// waits unless asked to, and answers with a Result. Whatever a client that died left behind is taken back by the next one that meets it.
//
// # Views
//
// A view is memory of the cache, mapped read-only: writing to it is a fault. It stays valid until the segment is closed. Its bytes are final
// unless somebody clears the cache or overwrites the sample; then it may show the old bytes, the new ones or a mix.
//
// # Concurrency
//
// All methods of a Cache may be called by any number of goroutines, Close too. At most 32 claims of one Cache are open at a time; more are answered Busy.
//
// Programs import package client, which adds names, load-once and iterators to this.
package cache
