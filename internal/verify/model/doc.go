// Package model checks the protocol of docs/spec/protocol.md by trying every interleaving of small
// configurations, deaths included.
//
// It is the protocol written down a third time, after Go (cache/) and C (cclient/): every shared
// word, one atomic access a step, and a client may die between any two steps. [Config.Explore]
// visits all reachable states breadth-first, so the schedule it reports for a violated invariant is
// a shortest one. The same steps, with the deliberate breakages of [Mutations], show that the
// invariants bite. [Sample] picks schedules whose switches fall on fault points; the replay tests
// run those on the real code and compare every word after every step.
//
// docs/spec/model.md says what is modelled, what is not, and how to read a counterexample.
package model

//go:generate go run ./export -o testdata/schedules.json
