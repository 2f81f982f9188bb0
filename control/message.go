package control

import (
	"encoding/binary"
	"fmt"
)

var magic = [4]byte{'S', 'T', 'O', 'C'}

// HelloBody is the body of HELLO, the first frame of a connection.
type HelloBody struct {
	Version uint16 // the highest that the client supports
	Kind    uint16 // kind of client, as in client records
	Label   string // name of the program, at most MaxLabel bytes
}

// AppendHello appends a frame. It cuts a label that is too long.
func AppendHello(b []byte, request uint64, m HelloBody) []byte {
	return appendFrame(b, Hello, request, magic, m.Version, m.Kind, []byte(m.Label[:min(len(m.Label), MaxLabel)]))
}

// ParseHello decodes a body. It returns ErrProtocol.
func ParseHello(body []byte) (HelloBody, error) {
	if len(body) < 8 || len(body) > 8+MaxLabel || [4]byte(body[:4]) != magic {
		return HelloBody{}, wrongBody(Hello, body, "it begins with STOC, version and kind")
	}
	return HelloBody{binary.LittleEndian.Uint16(body[4:]), binary.LittleEndian.Uint16(body[6:]),
		Printable(string(body[8:]))}, nil
}

// WelcomeBody is the answer to HELLO.
type WelcomeBody struct {
	Version    uint16
	MaxIndices uint32 // in one request
	Boot       [16]byte
}

// AppendWelcome appends a frame.
func AppendWelcome(b []byte, request uint64, m WelcomeBody) []byte {
	return appendFrame(b, Welcome, request, m.Version, uint16(0), m.MaxIndices, m.Boot)
}

// ParseWelcome decodes a body. It returns ErrProtocol.
func ParseWelcome(body []byte) (m WelcomeBody, err error) {
	if len(body) != 24 || binary.LittleEndian.Uint16(body[2:]) != 0 {
		return m, wrongBody(Welcome, body, "it has 24")
	}
	m = WelcomeBody{binary.LittleEndian.Uint16(body), binary.LittleEndian.Uint32(body[4:]), [16]byte(body[8:])}
	if m.MaxIndices == 0 || m.MaxIndices > MaxIndices {
		return m, wrongBody(Welcome, body, fmt.Sprintf("%d indices a request", m.MaxIndices))
	}
	return m, nil
}

// AppendAttach appends a frame that asks for a cache by its name.
func AppendAttach(b []byte, request uint64, name string) []byte {
	return appendFrame(b, Attach, request, []byte(name))
}

// ParseAttach decodes a body. It returns ErrProtocol.
func ParseAttach(body []byte) (string, error) {
	if len(body) < 1 || len(body) > MaxName {
		return "", wrongBody(Attach, body, fmt.Sprintf("a name has 1 to %d", MaxName))
	}
	return string(body), nil
}

// AttachedBody is the answer to ATTACH. A descriptor of the segment comes with the frame.
type AttachedBody struct {
	Cache uint32 // number of the cache on this connection
	UUID  [16]byte
}

// AppendAttached appends a frame.
func AppendAttached(b []byte, request uint64, m AttachedBody) []byte {
	return appendFrame(b, Attached, request, m.Cache, uint32(0), m.UUID)
}

// ParseAttached decodes a body. It returns ErrProtocol.
func ParseAttached(body []byte) (AttachedBody, error) {
	if len(body) != 24 || binary.LittleEndian.Uint32(body[4:]) != 0 {
		return AttachedBody{}, wrongBody(Attached, body, "it has 24")
	}
	return AttachedBody{binary.LittleEndian.Uint32(body), [16]byte(body[8:])}, nil
}

// Flags of FETCH. All but Loads exclude each other.
const (
	SlotsOnly = 1 // the server does not send samples without a slot
	Send      = 2 // the server sends all samples, also those that are READY
	Unstored  = 4 // as Send, and the server stores none for this request

	// Loads may come with Send and Unstored: the client loads samples that fail with CodeLoad, and ends each load
	// with an OFFER.
	Loads = 8

	File = 16 // the server sends the file of each sample, for a client that decodes it
)

// FetchBody is the body of FETCH and PREFETCH. PREFETCH has no flags.
type FetchBody struct {
	Cache   uint32
	Flags   uint32
	Indices []int64
}

// AppendFetch appends a FETCH or PREFETCH.
func AppendFetch(b []byte, t Type, request uint64, m FetchBody) []byte {
	return appendFrame(b, t, request, m.Cache, m.Flags, m.Indices)
}

// ParseFetch decodes the body of a FETCH or PREFETCH. It returns ErrProtocol. It does not compare
// the indices with a cache.
func ParseFetch(t Type, body []byte) (FetchBody, error) {
	n := (len(body) - 8) / 8
	if len(body) < 16 || len(body)%8 != 0 || n > MaxIndices {
		return FetchBody{}, wrongBody(t, body, fmt.Sprintf("8, and 8 for each of 1 to %d indices", MaxIndices))
	}
	m := FetchBody{binary.LittleEndian.Uint32(body), binary.LittleEndian.Uint32(body[4:]), make([]int64, n)}
	how := m.Flags &^ Loads
	known := m.Flags == SlotsOnly || m.Flags == File || how == 0 || how == Send || how == Unstored
	if !known || t == Prefetch && m.Flags != 0 {
		return FetchBody{}, wrongBody(t, body, fmt.Sprintf("flags %#x", m.Flags))
	}
	for k := range m.Indices {
		m.Indices[k] = int64(binary.LittleEndian.Uint64(body[8+8*k:]))
	}
	return m, nil
}

// SampleBytes is the number of bytes before the sample in the body of SAMPLE.
const SampleBytes = 8

// AppendSampleHeader appends header and position, which come before the bytes of a sample.
func AppendSampleHeader(b []byte, request uint64, position uint32, length int) []byte {
	b = AppendHeader(b, Header{uint32(SampleBytes + length), Sample, request})
	b = binary.LittleEndian.AppendUint32(b, position)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// ParseSample decodes the position from the first SampleBytes of a SAMPLE body. It returns
// ErrProtocol.
func ParseSample(body []byte) (position uint32, err error) {
	if len(body) < SampleBytes || binary.LittleEndian.Uint32(body[4:]) != 0 {
		return 0, wrongBody(Sample, body, "position and reserved come first")
	}
	return binary.LittleEndian.Uint32(body), nil
}

// Failure is one failed sample of a request.
type Failure struct {
	Position uint32 // in the request
	Code     Code
	Text     string // at most MaxText bytes
}

// AppendFetched appends a frame. When the failures would exceed MaxServerBody, it leaves out the
// texts of the last ones.
func AppendFetched(b []byte, request uint64, failures []Failure) []byte {
	body := binary.LittleEndian.AppendUint64(nil, uint64(len(failures)))
	for k, f := range failures {
		text := f.Text[:min(len(f.Text), MaxText)]
		if len(body)+8+len(text)+8*(len(failures)-k) > MaxServerBody {
			text = ""
		}
		body = binary.LittleEndian.AppendUint32(body, f.Position)
		body = binary.LittleEndian.AppendUint16(body, uint16(f.Code))
		body = binary.LittleEndian.AppendUint16(body, uint16(len(text)))
		body = append(body, text...)
	}
	return appendFrame(b, Fetched, request, body)
}

// ParseFetched decodes a body. It returns ErrProtocol, also for a position that is not below n, the
// number of indices of the request.
func ParseFetched(body []byte, n int) ([]Failure, error) {
	if len(body) < 8 || binary.LittleEndian.Uint32(body[4:]) != 0 {
		return nil, wrongBody(Fetched, body, "it begins with a number and 4 zeros")
	}
	count, rest := int(binary.LittleEndian.Uint32(body)), body[8:]
	if count > n {
		return nil, wrongBody(Fetched, body, fmt.Sprintf("%d of %d samples failed", count, n))
	}
	failures := make([]Failure, 0, count)
	for range count {
		if len(rest) < 8 {
			return nil, wrongBody(Fetched, body, "it ends within a failure")
		}
		f := Failure{Position: binary.LittleEndian.Uint32(rest), Code: Code(binary.LittleEndian.Uint16(rest[4:]))}
		length := int(binary.LittleEndian.Uint16(rest[6:]))
		if f.Position >= uint32(n) || f.Code == 0 || length > MaxText || length > len(rest)-8 {
			return nil, wrongBody(Fetched, body,
				fmt.Sprintf("a failure of position %d with code %d and %d bytes of text", f.Position, f.Code, length))
		}
		f.Text = Printable(string(rest[8 : 8+length]))
		failures, rest = append(failures, f), rest[8+length:]
	}
	if len(rest) != 0 {
		return nil, wrongBody(Fetched, body, fmt.Sprintf("%d bytes after the last failure", len(rest)))
	}
	return failures, nil
}

// AppendPrefetched appends a frame with the number of queued samples.
func AppendPrefetched(b []byte, request uint64, queued int) []byte {
	return appendFrame(b, Prefetched, request, uint64(queued))
}

// ParsePrefetched decodes a body. It returns ErrProtocol.
func ParsePrefetched(body []byte) (queued int, err error) {
	if len(body) != 8 || binary.LittleEndian.Uint32(body[4:]) != 0 {
		return 0, wrongBody(Prefetched, body, "it has 8")
	}
	return int(binary.LittleEndian.Uint32(body)), nil
}

// Flags of ANNOUNCE.
const (
	Withdraw = 1 // ends the job of the owner
	Told     = 2 // the owner says how far its job is
)

// AnnounceBody is the body of ANNOUNCE, as its fields lie there: what a job reads from now on. docs/spec/order.md
// explains orders and ranks.
type AnnounceBody struct {
	Cache       uint32
	Owner       uint32 // owner number of the client that reads
	Kind, Ends  uint32
	Seed        uint64
	Window      uint64
	Block       uint64
	Epoch       uint64
	Position    uint64 // position of the job in the epoch
	Rank, Ranks uint64
	Samples     uint64 // samples of the order
	Reads       uint64 // hits and misses of the owner's record at that position; with Told, reads since then
	Batch       uint32 // samples that the job reads at a time
	Flags       uint32
}

// AppendAnnounce appends a frame.
func AppendAnnounce(b []byte, request uint64, m AnnounceBody) []byte {
	return appendFrame(b, Announce, request, m)
}

// ParseAnnounce decodes a body. It returns ErrProtocol. It does not check the order.
func ParseAnnounce(body []byte) (m AnnounceBody, err error) {
	if n, err := binary.Decode(body, binary.LittleEndian, &m); err != nil || n != len(body) {
		return m, wrongBody(Announce, body, "it has 96")
	}
	if m.Flags > Told {
		return m, wrongBody(Announce, body, fmt.Sprintf("flags %#x", m.Flags))
	}
	return m, nil
}

// AppendAnnounced appends a frame that says whether the cache keeps what jobs read soonest.
func AppendAnnounced(b []byte, request uint64, used bool) []byte {
	return appendAnswer(b, Announced, request, used)
}

// ParseAnnounced decodes a body. It returns ErrProtocol.
func ParseAnnounced(body []byte) (used bool, err error) { return parseAnswer(Announced, body) }

func appendAnswer(b []byte, t Type, request uint64, yes bool) []byte {
	return appendFrame(b, t, request, yes, [7]byte{})
}

func parseAnswer(t Type, body []byte) (yes bool, err error) {
	if len(body) != 8 || binary.LittleEndian.Uint32(body) > 1 || binary.LittleEndian.Uint32(body[4:]) != 0 {
		return false, wrongBody(t, body, "it has 8")
	}
	return body[0] == 1, nil
}

// Flags of an OFFER without a sample.
const (
	Failed  = 1 // its load has failed, or the client gives it up
	Damaged = 2 // its file is no picture, or damaged; the reason comes in place of the sample
)

// OfferBody is the body of OFFER: a sample that the client has loaded.
type OfferBody struct {
	Cache  uint32
	Flags  uint32
	Index  int64
	Sample []byte // empty with Failed, a text with Damaged
}

// OfferBytes is the number of bytes before the sample in the body of OFFER.
const OfferBytes = 16

// AppendOffer appends a frame.
func AppendOffer(b []byte, request uint64, m OfferBody) []byte {
	return appendFrame(b, Offer, request, m.Cache, m.Flags, m.Index, m.Sample)
}

// ParseOffer decodes a body, and copies nothing. It returns ErrProtocol. It does not compare the sample with a
// cache.
func ParseOffer(body []byte) (m OfferBody, err error) {
	if len(body) < OfferBytes {
		return m, wrongBody(Offer, body, "cache, flags and index come first")
	}
	le := binary.LittleEndian
	m = OfferBody{le.Uint32(body), le.Uint32(body[4:]), int64(le.Uint64(body[8:])), body[OfferBytes:]}
	if m.Flags > Damaged || m.Flags == Failed && len(m.Sample) > 0 || m.Flags == Damaged && len(m.Sample) > MaxText {
		return m, wrongBody(Offer, body, fmt.Sprintf("flags %#x", m.Flags))
	}
	return m, nil
}

// AppendOffered appends a frame that says whether a tier takes the sample.
func AppendOffered(b []byte, request uint64, taken bool) []byte {
	return appendAnswer(b, Offered, request, taken)
}

// ParseOffered decodes a body. It returns ErrProtocol.
func ParseOffered(body []byte) (taken bool, err error) { return parseAnswer(Offered, body) }

// AppendCancel appends a frame that cancels a request.
func AppendCancel(b []byte, request uint64) []byte { return appendFrame(b, Cancel, request) }

// AppendError appends a frame. It cuts a text that is too long.
func AppendError(b []byte, request uint64, code Code, text string) []byte {
	return appendFrame(b, Error, request, code, uint16(0), []byte(text[:min(len(text), MaxText)]))
}

// ParseError decodes the body of an ERROR. It returns ErrProtocol.
func ParseError(body []byte) (*RemoteError, error) {
	if len(body) < 4 || len(body) > 4+MaxText || binary.LittleEndian.Uint16(body[2:]) != 0 ||
		binary.LittleEndian.Uint16(body) == 0 {
		return nil, wrongBody(Error, body, "it begins with a code and 2 zeros")
	}
	return &RemoteError{Code(binary.LittleEndian.Uint16(body)), Printable(string(body[4:]))}, nil
}
