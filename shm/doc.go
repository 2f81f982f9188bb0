// Package shm holds the segment: layout, creation, attachment, liveness locks and memory budget.
//
// It knows where each byte lies and which clients live. Package cache knows what the words mean
// for a sample. docs/spec/segment.md is the normative text. The package imports the standard
// library, golang.org/x/sys and mmap-go, and nothing of ours.
package shm
