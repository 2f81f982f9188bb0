// Package remote reads objects over a network: what http and s3 have in common.
//
// A Driver sends single requests. Store makes source.Objects of it. Store compares each answer with the
// state that the caller knows, so a sample is never a mix of two states. If a body breaks off, Store asks
// for the rest. It gives up an answer that stands still. A window bounds the requests at a time. If no
// byte came, Store does not try again: package wrap has the policy for that. Requests that open a source
// are not in its hands, so Store tries each of these up to five times.
package remote
