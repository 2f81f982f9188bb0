// Package wrap puts something between a source and its readers: each function takes a source.Source and returns another one over it, whose Close closes both.
//
//	Retry        tries a failed read again, when that can help
//	Concurrency  lets at most n reads run at a time
//	Rate         makes reads as slow as those of a disk or a network
//	ReadAhead    reads what was announced before it is asked for
//	Count        counts reads, bytes, errors and seconds
//
// Apply puts those around a source that settings ask for. Package faults makes reads fail, for tests.
//
// A wrapper has what its source has: over one whose samples lie in blocks (source.Blocks) it is a source.Blocks as well, and reading a block is one read to it.
// All are safe for any number of goroutines. Close ends reads that wait in a wrapper with ErrClosed.
package wrap
