// Package shm is the segment: its layout, creation, attachment, liveness locks and memory budget.
//
// It knows where every byte lies and who is alive; what the words mean for a sample is the protocol's business, in package cache.
// docs/spec/segment.md is the normative text. The package imports the standard library, golang.org/x/sys and mmap-go, and nothing of ours.
package shm
