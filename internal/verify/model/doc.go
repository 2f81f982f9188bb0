// Package model checks the protocol of docs/spec/protocol.md. It tries every interleaving of small
// configurations, with deaths of clients.
//
// It is the third implementation of the protocol, after Go (cache/) and C (cclient/): every shared
// word, one atomic access a step. A client may die between any two steps. [Config.Explore] visits
// all reachable states breadth-first, so the schedule of a violated invariant is a shortest one.
// The same steps, broken on purpose by [Mutants], show that the invariants find errors. [Schedules]
// are those whose switches are at fault points. The replay tests run those on the real code
// and compare every word after every step.
//
// docs/spec/model.md says what is modelled, what is not, and how to read a counterexample.
package model
