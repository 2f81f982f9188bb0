// Package server runs the caches of a machine: it creates or adopts them, listens on the sockets,
// changes caches while it runs, and ends.
//
// Server (server.go) has the life cycle. A served cache (package served) is a segment with a
// source; its filler (fill) reads samples, for the connections of clients (session) and for the
// plans of jobs (prefetch). Operators (admin) have caches added, replaced and removed (change.go,
// reload.go), if they fit (capacity.go). The janitor (janitor.go) cleans up.
//
// Imports point one way: config -> server -> admin -> session -> served -> prefetch -> fill. A hit
// passes none of this, and every cache works without its server.
package server
