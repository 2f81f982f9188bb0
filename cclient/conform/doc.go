// Package conform compares the two implementations of the protocol: one table of operations is driven through the Go client (package cache) and through
// libstocached, on segments of the same kind and on one segment in turns, and results, error codes, counters and the bytes of the segment must be equal.
//
// It is the only package with cgo. It opens the library at run time (dlopen), so that it builds without it.
package conform
