// Package shm holds the segment: layout, creation, attachment and liveness locks. It finds the
// caches of this user; package memory counts what they may still fill.
//
// It knows where each byte lies and which clients live. Package cache knows what the words mean
// for a sample. docs/spec/segment.md is the normative text.
package shm
