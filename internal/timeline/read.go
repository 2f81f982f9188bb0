package timeline

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// ErrFormat is returned when a file is not a valid timeline of a loader.
var ErrFormat = errors.New("not a timeline of stocached")

// Version of the format that Read accepts and Write writes.
const Version = 1

const format = "stocached trace"

// MaxSpans is the most spans of a file. Each takes 72 bytes of memory.
const MaxSpans = 10_000_000

// ReadFile reads a file of a recorder or of Write, compressed by gzip or not. Errors: ErrFormat for
// invalid content.
func ReadFile(path string) (*Trace, error) {
	return ReadWith(path, ErrFormat, Read)
}

// ReadWith reads a file with a function. invalid: the error of a folder. Errors name the path.
func ReadWith[T any](path string, invalid error, read func(io.Reader) (*T, error)) (*T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if st.IsDir() {
		return nil, fmt.Errorf("%w: %s is a folder", invalid, path)
	}
	t, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Gunzip unpacks what is compressed by gzip, and returns other input as it is. invalid: the error of
// a broken beginning.
func Gunzip(in *bufio.Reader, invalid error) (*bufio.Reader, error) {
	if magic, _ := in.Peek(2); len(magic) < 2 || magic[0] != 0x1f || magic[1] != 0x8b {
		return in, nil
	}
	unpacked, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: compressed by gzip, but broken: %v", invalid, err)
	}
	return bufio.NewReaderSize(unpacked, 1<<20), nil
}

// Read reads the output of a recorder or of Write.
func Read(r io.Reader) (*Trace, error) {
	in, err := Gunzip(bufio.NewReaderSize(r, 1<<20), ErrFormat)
	if err != nil {
		return nil, err
	}
	if _, err := in.Peek(1); err == io.EOF {
		return nil, fmt.Errorf("%w: it is empty", ErrFormat)
	}
	p := reader{in: in, json: json.NewDecoder(in), names: map[string]uint16{}, tracks: map[int]*Track{},
		loaders: map[int]*Loader{}}
	if err := p.file(); err != nil {
		return nil, p.explain(err)
	}
	p.trace.order()
	return &p.trace, nil
}

// reader reads a file event by event, so that only the spans take memory.
type reader struct {
	in      io.Reader
	json    *json.Decoder
	text    []byte // text of an event
	trace   Trace
	loaders map[int]*Loader // by pid
	tracks  map[int]*Track  // by tid
	names   map[string]uint16
	events  int
	began   bool // the file is a JSON object
}

// explain turns a decoding error into one about the file.
func (p *reader) explain(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, ErrFormat):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ends in the middle, after %d events: it was cut off when it was copied, or the "+
			"disk was full", ErrFormat, p.events)
	case errors.As(err, &syntax) && !p.began:
		return fmt.Errorf("%w: it is not JSON (%v)", ErrFormat, err)
	case errors.As(err, &syntax), errors.As(err, &kind), errors.Is(err, gzip.ErrChecksum),
		errors.Is(err, gzip.ErrHeader):
		return fmt.Errorf("%w: after %d events: %v", ErrFormat, p.events, err)
	}
	return err
}

func (p *reader) file() error {
	if err := p.expect('{'); err != nil {
		return err
	}
	p.began = true
	known, events := false, false
	for p.json.More() {
		token, err := p.json.Token()
		if err != nil {
			return err
		}
		switch token {
		case "otherData":
			if err := p.about(); err != nil {
				return err
			}
			known = true
		case "traceEvents":
			if !known {
				return fmt.Errorf("%w: it holds trace events of another program (ui.perfetto.dev shows those)",
					ErrFormat)
			}
			if err := p.all(); err != nil {
				return err
			}
			events = true
		default:
			var ignored json.RawMessage
			if err := p.json.Decode(&ignored); err != nil {
				return err
			}
		}
	}
	if err := p.expect('}'); err != nil {
		return err
	}
	switch token, err := p.json.Token(); { // read to the end: a compressed file has its checksum there
	case err == nil:
		return fmt.Errorf("%w: %q after its end", ErrFormat, fmt.Sprint(token))
	case err != io.EOF:
		return err
	}
	if !known || !events {
		return fmt.Errorf("%w: a JSON object without otherData and traceEvents", ErrFormat)
	}
	return nil
}

func (p *reader) expect(want json.Delim) error {
	token, err := p.json.Token()
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("%w: %q where %q belongs", ErrFormat, fmt.Sprint(token), want)
	}
	return nil
}

// about reads otherData.
func (p *reader) about() error {
	var raw json.RawMessage
	if err := p.json.Decode(&raw); err != nil {
		return err
	}
	var kind struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if json.Unmarshal(raw, &kind) != nil || kind.Format != format {
		return fmt.Errorf("%w: it holds trace events of another program (ui.perfetto.dev shows those)", ErrFormat)
	}
	if kind.Version != Version {
		return fmt.Errorf("%w: version %d of the format; this stocached reads version %d, so use the one that "+
			"goes with the loader", ErrFormat, kind.Version, Version)
	}
	var body struct {
		Ranks []*Loader `json:"ranks"`
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return fmt.Errorf("%w: otherData: %v", ErrFormat, err)
	}
	if len(body.Ranks) == 0 {
		return fmt.Errorf("%w: otherData names no loader", ErrFormat)
	}
	for _, l := range body.Ranks {
		if l == nil || l.PID < 1 || p.loaders[l.PID] != nil {
			return fmt.Errorf("%w: otherData: pids must be 1 or more, each once", ErrFormat)
		}
		p.loaders[l.PID] = l
	}
	p.trace.Loaders = body.Ranks
	return nil
}

func (p *reader) all() error {
	if err := p.expect('['); err != nil {
		return err
	}
	// From here on the reader splits the text into events itself: package json takes several times
	// as long.
	in := bufio.NewReaderSize(io.MultiReader(p.json.Buffered(), p.in), 1<<20)
	for {
		text, err := nextEvent(in, p.events > 0, p.text[:0])
		if err != nil {
			return err
		}
		if text == nil {
			break
		}
		p.text = text
		e, err := parseEvent(text)
		if err != nil {
			return err
		}
		p.events++
		if p.events > MaxSpans {
			return fmt.Errorf("%w: more than %d events; record fewer epochs, or with a lower limit", ErrFormat,
				MaxSpans)
		}
		if err := p.event(&e); err != nil {
			return fmt.Errorf("%w: event %d: %v", ErrFormat, p.events, err)
		}
	}
	p.in = in
	p.json = json.NewDecoder(io.MultiReader(strings.NewReader(`{"":0`), in)) // a decoder in the state after the array
	for range 3 {
		if _, err := p.json.Token(); err != nil {
			return err
		}
	}
	return nil
}

// maxEvent is the most bytes of an event.
const maxEvent = 1 << 20

// nextEvent reads the text of the next element of an array; nil at the array's end. following:
// another element was before it, so a comma must come first.
func nextEvent(in *bufio.Reader, following bool, text []byte) ([]byte, error) {
	depth, quoted, escaped, comma := 0, false, false, false
	for {
		c, err := in.ReadByte()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		if depth == 0 {
			switch {
			case c == ' ' || c == '\n' || c == '\r' || c == '\t':
			case c == ']' && !comma:
				return nil, nil
			case c == ',' && following && !comma:
				comma = true
			case c == '{' && comma == following:
				depth, text = 1, append(text, c)
			default:
				return nil, fmt.Errorf("%w: %q between events", ErrFormat, c)
			}
			continue
		}
		if text = append(text, c); len(text) > maxEvent {
			return nil, fmt.Errorf("%w: an event of more than %d bytes", ErrFormat, maxEvent)
		}
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped = c == '\\'
			quoted = c != '"'
		case c == '"':
			quoted = true
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return text, nil
			}
		}
	}
}

func (p *reader) event(e *event) error {
	l := p.loaders[e.PID]
	if l == nil {
		return fmt.Errorf("pid %d, which otherData does not name", e.PID)
	}
	switch {
	case e.Ph == "M" && e.Name == "thread_name":
		number := e.TID - tidsOfLoader*e.PID
		if number < 1 || number >= tidsOfLoader || p.tracks[e.TID] != nil {
			return fmt.Errorf("tid %d: of pid %d they are %d to %d, each once", e.TID, e.PID, tidsOfLoader*e.PID+1,
				tidsOfLoader*(e.PID+1)-1)
		}
		track := &Track{Number: number, Name: shown(e.Args.Name)}
		p.tracks[e.TID], l.Tracks = track, append(l.Tracks, track)
		return nil
	case e.Ph == "M":
		return nil
	case e.Ph != "X":
		return fmt.Errorf("phase %q; spans are of phase \"X\"", e.Ph)
	}
	track := p.tracks[e.TID]
	switch {
	case track == nil || e.TID/tidsOfLoader != e.PID:
		return fmt.Errorf("tid %d, which no thread_name of pid %d names", e.TID, e.PID)
	case e.Name == "":
		return errors.New("a span without a name")
	case e.TS == absent || e.Dur < 0:
		return errors.New("a span needs ts, and dur of 0 or more")
	case math.Abs(e.TS) > 1e15 || e.Dur > 1e15:
		return fmt.Errorf("ts %g, dur %g: more than thirty years", e.TS, e.Dur)
	}
	s := Span{Start: nanoseconds(e.TS), Kind: kindOf(e.Name), Epoch: e.Args.Epoch, Batch: e.Args.Batch,
		Samples: e.Args.Samples, Hits: e.Args.Hits, Misses: e.Args.Misses, Index: e.Args.Index, Bytes: e.Args.Bytes}
	s.End = s.Start + nanoseconds(e.Dur)
	if min(s.Epoch, s.Batch, s.Samples, s.Hits, s.Misses) < -1 || min(s.Index, s.Bytes) < -1 {
		return fmt.Errorf("args %+v: numbers below 0", e.Args)
	}
	if s.Kind == Other {
		n, ok := p.names[e.Name]
		if !ok {
			if len(p.names) > math.MaxUint16 {
				return fmt.Errorf("more than %d names of spans", math.MaxUint16)
			}
			n = uint16(len(p.names))
			p.names[e.Name] = n
			p.trace.names = append(p.trace.names, shown(e.Name))
		}
		s.name = n
	}
	track.Spans = append(track.Spans, s)
	return nil
}

func nanoseconds(us float64) int64 { return int64(math.Round(us * 1000)) }
