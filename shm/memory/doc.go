// Package memory says how much memory caches may take: of the machine, of cgroups and of a tmpfs,
// less what other caches have yet to fill. It lets the clients of a segment draw on it.
//
// docs/spec/segment.md, Memory, and docs/spec/protocol.md, Memory, have the rules. The package knows
// no segment: package shm tells it which caches there are, and which words an allowance works on.
package memory
