// Package control is the protocol of the data socket, by which clients ask a server to fill caches:
// docs/spec/control.md. It encodes and decodes frames for both sides. It opens no sockets, but
// knows their paths.
package control
