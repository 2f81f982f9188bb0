package timeline

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"math"
)

// MaxPageSpans is how many spans a page may have: it is some 40 bytes of text for each, which a browser keeps in memory.
const MaxPageSpans = 2_000_000

//go:embed page.html
var page []byte

var placeholder = []byte("/*DATA*/")

// HTML writes one page that needs nothing else: rows as in PNG, to zoom and to point at.
func HTML(w io.Writer, t *Trace, from, to int64) error {
	data, err := t.pageData(from, to)
	if err != nil {
		return err
	}
	text, err := json.Marshal(data) // which escapes <, so that no name ends the script
	if err != nil {
		return err
	}
	before, after, found := bytes.Cut(page, placeholder)
	if !found {
		panic("the page has no place for its data")
	}
	for _, part := range [][]byte{before, text, after} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// pageData is what the script of the page works on. Times are microseconds.
type pageData struct {
	Title    string       `json:"title"`
	Subtitle string       `json:"subtitle"`
	About    string       `json:"about"`
	From     float64      `json:"from"`
	To       float64      `json:"to"`
	Kinds    []string     `json:"kinds"`
	Colours  []string     `json:"colours"`
	Inks     []string     `json:"inks"`
	There    []bool       `json:"there"`
	Names    []string     `json:"names"`
	Parts    []pagePart   `json:"parts"`
	Advice   []pageAdvice `json:"advice"`
	Loaders  []pageLoader `json:"loaders"`
}

type pagePart struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Colour  string  `json:"colour"`
}

type pageAdvice struct {
	Text string  `json:"text"`
	Gain float64 `json:"gain"`
}

type pageLoader struct {
	Name    string      `json:"name"`
	Heading string      `json:"heading"`
	Tracks  []pageTrack `json:"tracks"`
}

// pageTrack has its spans in columns, each a little-endian array in base 64; "": nothing in it is known.
type pageTrack struct {
	Name    string  `json:"name"`
	Share   float64 `json:"share"`
	Start   string  `json:"start"`
	Length  string  `json:"length"`
	Kind    string  `json:"kind"`
	Epoch   string  `json:"epoch"`
	Batch   string  `json:"batch"`
	Samples string  `json:"samples"`
	Hits    string  `json:"hits"`
	Misses  string  `json:"misses"`
	Index   string  `json:"index"`
	Bytes   string  `json:"bytes"`
	Names   string  `json:"name_of"`
}

func (t *Trace) pageData(from, to int64) (*pageData, error) {
	part := t.between(from, to)
	if n := part.Spans(); n > MaxPageSpans {
		return nil, fmt.Errorf("%s spans are more than a browser takes (%s): draw a part of them, with --epoch, --from and --to", thousands(float64(n)), thousands(MaxPageSpans))
	}
	d := &pageData{Title: part.title(from, to), Subtitle: part.subtitle(from, to), From: float64(from) / 1000, To: float64(max(to, from+1)) / 1000, Names: t.names, Parts: []pagePart{}, Advice: []pageAdvice{}, Loaders: []pageLoader{}}
	for k := range kinds {
		d.Kinds, d.Colours, d.Inks = append(d.Kinds, k.String()), append(d.Colours, hex(palette[k])), append(d.Inks, hex(inks[k]))
	}
	there := part.kinds()
	d.There = there[:]
	var inside []*Epoch
	for _, e := range t.Epochs() {
		if e.From < to && e.To > from {
			inside = append(inside, e)
		}
	}
	if e := Typical(inside); e != nil {
		d.describe(e, len(t.Loaders) > 1)
	}
	uses := part.Uses(from, max(to, from+1))
	for _, l := range part.Loaders {
		p := pageLoader{Name: l.Name(), Heading: l.heading(), Tracks: []pageTrack{}}
		for _, track := range l.Tracks {
			row := track.columns()
			row.Share = uses[0].Share
			uses = uses[1:]
			p.Tracks = append(p.Tracks, row)
		}
		d.Loaders = append(d.Loaders, p)
	}
	return d, nil
}

// describe adds what there is to say about an epoch.
func (d *pageData) describe(e *Epoch, several bool) {
	if e.Number >= 0 {
		d.About = fmt.Sprintf("epoch %d", e.Number)
	}
	if several {
		d.About += fmt.Sprintf(", %s", e.Loader.Name())
	}
	for _, part := range []pagePart{
		{"steps", e.Step, hex(palette[Step])},
		{"waiting for loads", e.WaitFor.Load, hex(palette[Load])},
		{"waiting for a server", e.WaitFor.Fetch, hex(palette[Fetch])},
		{"waiting for gathers", e.WaitFor.Gather, hex(palette[Gather])},
		{"waiting for transfers", e.WaitFor.Transfer, hex(palette[Transfer])},
		{"waiting for nothing recorded", e.WaitFor.Other, hex(palette[Other])},
	} {
		if part.Seconds > 0 {
			d.Parts = append(d.Parts, part)
		}
	}
	for _, a := range e.Advise() {
		d.Advice = append(d.Advice, pageAdvice{a.Text, a.Gain})
	}
}

// between is the part of a trace whose spans touch the time between two moments. Its tracks are new, its loaders' other figures are not.
func (t *Trace) between(from, to int64) *Trace {
	part := &Trace{names: t.names}
	for _, l := range t.Loaders {
		copied := *l
		copied.Tracks = nil
		for _, track := range l.Tracks {
			row := &Track{Number: track.Number, Name: track.Name}
			for _, s := range track.Spans {
				if s.End >= from && s.Start <= to {
					row.Spans = append(row.Spans, s)
				}
			}
			copied.Tracks = append(copied.Tracks, row)
		}
		part.Loaders = append(part.Loaders, &copied)
	}
	return part
}

func (t *Track) columns() pageTrack {
	floats := func(always bool, value func(*Span) float64) string {
		b := make([]byte, 0, 8*len(t.Spans))
		known := always
		for k := range t.Spans {
			v := value(&t.Spans[k])
			known = known || v >= 0
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
		if !known {
			return ""
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	ints := func(value func(*Span) int32) string {
		b := make([]byte, 0, 4*len(t.Spans))
		known := false
		for k := range t.Spans {
			v := value(&t.Spans[k])
			known = known || v >= 0
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
		if !known {
			return ""
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	kinds := make([]byte, len(t.Spans))
	named := false
	for k := range t.Spans {
		kinds[k] = byte(t.Spans[k].Kind)
		named = named || t.Spans[k].Kind == Other
	}
	p := pageTrack{
		Name:    t.Name,
		Start:   floats(true, func(s *Span) float64 { return float64(s.Start) / 1000 }),
		Length:  floats(true, func(s *Span) float64 { return float64(s.Length()) / 1000 }),
		Kind:    base64.StdEncoding.EncodeToString(kinds),
		Epoch:   ints(func(s *Span) int32 { return s.Epoch }),
		Batch:   ints(func(s *Span) int32 { return s.Batch }),
		Samples: ints(func(s *Span) int32 { return s.Samples }),
		Hits:    ints(func(s *Span) int32 { return s.Hits }),
		Misses:  ints(func(s *Span) int32 { return s.Misses }),
		Index:   floats(false, func(s *Span) float64 { return float64(s.Index) }),
		Bytes:   floats(false, func(s *Span) float64 { return float64(s.Bytes) }),
	}
	if named {
		p.Names = ints(func(s *Span) int32 { return int32(s.name) })
	}
	return p
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }
