// Package server runs the caches of a machine. It creates or adopts them, listens on the sockets,
// and changes caches while it runs.
//
// Server (server.go) has the life cycle. A served cache (package served) is a segment with a
// source. Its filler (fill) reads samples for the sessions of clients (session) and for the plans
// of jobs (prefetch). Operators (admin) add, replace and remove caches (change.go, reload.go). A
// new cache must fit into memory (capacity.go). The janitor (janitor.go) cleans up.
//
// Imports point one way: config -> server -> admin -> session -> served -> prefetch -> fill. A hit
// uses none of these packages, and every cache works without its server.
package server
