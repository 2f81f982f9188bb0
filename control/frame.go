package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version is the version of the protocol. Both sides refuse any other.
const Version = 1

// Limits of docs/spec/control.md.
const (
	HeaderBytes    = 16
	MaxClientBody  = 1 << 20 // a frame from a client, except OFFER
	MaxServerBody  = 4 << 20 // a frame from the server, except SAMPLE
	MaxIndices     = 65536   // in one request
	MaxRequests    = 64      // inflight on a connection
	MaxUnderWay    = 262144  // indices of all requests of a connection
	MaxWaitingSend = 64 << 20
	MaxLabel       = 63
	MaxName        = 100
	MaxText        = 1000 // bytes of a message; a longer one is cut
)

// Type is the type of a frame.
type Type uint16

// The types.
const (
	Hello Type = 1 + iota
	Welcome
	Attach
	Attached
	Fetch
	Sample
	Fetched
	Prefetch
	Prefetched
	Cancel
	Error
	Announce
	Announced
	Offer
	Offered
	typeEnd
)

var typeNames = [...]string{"", "HELLO", "WELCOME", "ATTACH", "ATTACHED", "FETCH", "SAMPLE", "FETCHED",
	"PREFETCH", "PREFETCHED", "CANCEL", "ERROR", "ANNOUNCE", "ANNOUNCED", "OFFER", "OFFERED"}

func (t Type) String() string {
	if t > 0 && int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint16(t))
}

// FromClient says whether clients send frames of this type.
func (t Type) FromClient() bool {
	return t == Hello || t == Attach || t == Fetch || t == Prefetch || t == Cancel || t == Announce ||
		t == Offer
}

// Header begins a frame.
type Header struct {
	Length  uint32 // bytes of the body
	Type    Type
	Request uint64
}

// ErrProtocol is the sentinel of all errors about frames.
var ErrProtocol = errors.New("not the protocol of the data socket")

// ParseHeader decodes a header from the other side. After ErrProtocol the rest of the stream cannot
// be decoded.
func ParseHeader(b [HeaderBytes]byte, fromClient bool) (Header, error) {
	h := Header{binary.LittleEndian.Uint32(b[0:]), Type(binary.LittleEndian.Uint16(b[4:])),
		binary.LittleEndian.Uint64(b[8:])}
	limit := uint32(MaxServerBody)
	switch {
	case fromClient && h.Type != Offer:
		limit = MaxClientBody
	case h.Type == Sample || h.Type == Offer:
		limit = 1<<32 - 1
	}
	switch {
	case h.Type == 0 || h.Type >= typeEnd:
		return h, fmt.Errorf("%w: a frame of %v", ErrProtocol, h.Type)
	case h.Type.FromClient() != fromClient:
		return h, fmt.Errorf("%w: %v from the wrong side", ErrProtocol, h.Type)
	case binary.LittleEndian.Uint16(b[6:]) != 0:
		return h, fmt.Errorf("%w: reserved bytes of a %v are not 0", ErrProtocol, h.Type)
	case h.Length > limit:
		return h, fmt.Errorf("%w: a %v of %d bytes, at most %d", ErrProtocol, h.Type, h.Length, limit)
	}
	return h, nil
}

// AppendHeader appends a header.
func AppendHeader(b []byte, h Header) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Length)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Type))
	b = binary.LittleEndian.AppendUint16(b, 0)
	return binary.LittleEndian.AppendUint64(b, h.Request)
}

// ReadHeader reads a header. It returns io.EOF when the other side ended the stream between frames.
func ReadHeader(r io.Reader, fromClient bool) (Header, error) {
	var b [HeaderBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Header{}, err
	}
	return ParseHeader(b, fromClient)
}

// appendFrame appends a whole frame. body: numbers, arrays and slices, and structs of these, as package binary has them.
func appendFrame(b []byte, t Type, request uint64, body ...any) []byte {
	at := len(b)
	b = AppendHeader(b, Header{Type: t, Request: request})
	for _, part := range body {
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, part); err != nil {
			panic(err) // a part of no fixed size
		}
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-HeaderBytes))
	return b
}

// wrongBody returns ErrProtocol for a body.
func wrongBody(t Type, body []byte, why string) error {
	return fmt.Errorf("%w: a %v of %d bytes: %s", ErrProtocol, t, len(body), why)
}
