// Package conform compares the two implementations of the protocol. It runs one table of operations
// with the Go client (package cache) and with libstocached. They use segments of the same kind, and
// one segment alternately. Results, error codes, counters and the bytes of the segment must be
// equal.
//
// It is the only package with cgo. It opens the library at run time (dlopen), so it builds without
// it.
package conform
