// Package wrap adds functions to sources: each function takes a source.Source and returns another
// one around it, whose Close closes both.
//
//	Retry        tries a failed read again if that may help
//	Concurrency  lets at most n reads run at a time
//	Rate         makes reads as slow as those of a disk or a network
//	ReadAhead    reads announced samples early
//	Watch        counts reads, bytes, errors and seconds, and knows which failures are not over
//
// Apply adds the wrappers of the settings. Package faults makes reads fail, for tests.
//
// A wrapper around a source.Blocks is a source.Blocks too, and counts the read of a block as one
// read. All are safe for concurrent use. Close ends reads that wait in a wrapper, with ErrClosed.
package wrap
