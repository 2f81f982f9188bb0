// Package control is the protocol of the data socket, by which clients ask a server to fill caches: docs/spec/control.md. It codes and decodes frames, for both sides; it opens
// no sockets but knows where they lie.
package control
