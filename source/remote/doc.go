// Package remote reads objects over a network: what http and s3 have in common.
//
// A Driver sends single requests. Store makes source.Objects of it. Store compares each answer with
// the state that the caller knows, so a sample is never a mix of two states. It continues a body that
// broke off with a request for the rest, gives up an answer that stands still, and begins no more
// requests at a time than Window allows. It does not try again if no byte came: package wrap has the
// policy for that.
package remote
