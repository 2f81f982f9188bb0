package timeline

import (
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/stocached/stocached/internal/palette"
)

// MaxPageSpans is the most spans of a page. A browser keeps about 40 bytes of text for each in
// memory.
const MaxPageSpans = 2_000_000

//go:embed page.html
var page string

// pageBegin and pageEnd are the parts of the page around its data.
var pageBegin, pageEnd = func() (begin, end string) {
	begin, end, found := strings.Cut(strings.Replace(page, "/*PALETTE*/", palette.CSS(), 1), "/*DATA*/")
	if !found {
		panic("the page has no place for its data")
	}
	return begin, end
}()

// PageScript is the script of every page, for a policy of what a browser may run.
var PageScript = func() string {
	_, script, _ := strings.Cut(pageEnd, "<script>")
	script, _, _ = strings.Cut(script, "</script>")
	return script
}()

// HTML writes one self-contained page: a row for each track, to zoom and to inspect.
func HTML(w io.Writer, t *Trace, from, to int64) error {
	data, err := t.pageData(from, to)
	if err != nil {
		return err
	}
	text, err := json.Marshal(data) // escapes <, so that no name ends the script
	if err != nil {
		return err
	}
	for _, part := range []string{pageBegin, string(text), pageEnd} {
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	return nil
}

// pageData is the input of the page's script. Times are microseconds.
type pageData struct {
	From    float64      `json:"from"`
	To      float64      `json:"to"`
	Kinds   []string     `json:"kinds"`
	Colours []string     `json:"colours"`
	Inks    []string     `json:"inks"`
	There   []bool       `json:"there"`
	Names   []string     `json:"names"`
	Views   []pageView   `json:"views"`
	Loaders []pageLoader `json:"loaders"`
}

// pageView is a part of the time that the user can choose, such as an epoch, with all that the page
// says about it.
type pageView struct {
	Name     string     `json:"name"`
	From     float64    `json:"from"`
	To       float64    `json:"to"`
	Title    string     `json:"title"`
	Subtitle string     `json:"subtitle"`
	Where    string     `json:"where"` // what the parts describe
	Parts    []pagePart `json:"parts"`
	Shares   []float64  `json:"shares"` // how busy each track is
}

type pagePart struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Colour  string  `json:"colour"`
}

type pageLoader struct {
	Name    string      `json:"name"`
	Heading string      `json:"heading"`
	Tracks  []pageTrack `json:"tracks"`
}

// pageTrack has its spans in columns, each a little-endian array in base 64; "": all values are
// unknown.
type pageTrack struct {
	Name    string `json:"name"`
	Start   string `json:"start"`
	Length  string `json:"length"`
	Kind    string `json:"kind"`
	Epoch   string `json:"epoch"`
	Batch   string `json:"batch"`
	Samples string `json:"samples"`
	Hits    string `json:"hits"`
	Misses  string `json:"misses"`
	Index   string `json:"index"`
	Bytes   string `json:"bytes"`
	Names   string `json:"name_of"`
}

func (t *Trace) pageData(from, to int64) (*pageData, error) {
	part := t.between(from, to)
	if n := part.Spans(); n > MaxPageSpans {
		return nil, fmt.Errorf("%s spans are too many for a browser (at most %s): draw a part of them, with --epoch,  "+
			"--from and --to", thousands(n), thousands(MaxPageSpans))
	}
	d := &pageData{From: float64(from) / 1000, To: float64(max(to, from+1)) / 1000, Names: t.names,
		Views: t.views(from, to), Loaders: []pageLoader{}}
	for k := range kinds {
		d.Kinds, d.Colours, d.Inks = append(d.Kinds, k.String()), append(d.Colours, palette.Hex(colours[k])),
			append(d.Inks, palette.Hex(inks[k]))
	}
	there := part.kinds()
	d.There = there[:]
	for _, l := range part.Loaders {
		p := pageLoader{Name: l.Name(), Heading: l.heading(), Tracks: []pageTrack{}}
		for _, track := range l.Tracks {
			p.Tracks = append(p.Tracks, track.columns())
		}
		d.Loaders = append(d.Loaders, p)
	}
	return d, nil
}

// views returns the part of the time that is drawn, and the epochs in it. If the part is exactly
// one epoch, it returns only this one.
func (t *Trace) views(from, to int64) (views []pageView) {
	epochs := t.Epochs()
	of := map[int][]*Epoch{}
	for _, e := range epochs {
		of[e.Number] = append(of[e.Number], e)
	}
	for _, number := range slices.Sorted(maps.Keys(of)) {
		a, b, _ := t.Epoch(number)
		if a < from || b > to || number < 0 {
			continue
		}
		e := Typical(of[number])
		if e == nil {
			continue
		}
		v := t.view(fmt.Sprintf("epoch %d", number), a, b, e)
		v.Where = t.about(e)
		if a == from && b == to {
			return []pageView{v}
		}
		views = append(views, v)
	}
	name := "this part"
	if a, b := t.Bounds(); a == from && b == to {
		name = "all epochs"
	}
	inside := t.clipped(from, to).Epochs()
	typical := Typical(inside)
	all := t.view(name, from, to, sum(inside, typical))
	if typical != nil {
		all.Where = name
		if len(t.Loaders) > 1 {
			all.Where += ", " + typical.Loader.Name()
		}
	}
	return slices.Insert(views, 0, all)
}

// about names the epoch, if there are several.
func (t *Trace) about(e *Epoch) (text string) {
	if e.Number >= 0 {
		text = fmt.Sprintf("epoch %d", e.Number)
	}
	if len(t.Loaders) > 1 {
		text += ", " + e.Loader.Name()
	}
	return text
}

// sum adds up the epochs of one loader, as far as views need it; nil: of none.
func sum(epochs []*Epoch, of *Epoch) *Epoch {
	if of == nil {
		return nil
	}
	all := &Epoch{}
	for _, e := range epochs {
		if e.Loader == of.Loader {
			all.Step += e.Step
			all.WaitFor = all.WaitFor.plus(e.WaitFor, 1)
		}
	}
	return all
}

// view describes a part of the time by the parts of an epoch; nil: none.
func (t *Trace) view(name string, from, to int64, parts *Epoch) pageView {
	part := t.between(from, to)
	v := pageView{Name: name, From: float64(from) / 1000, To: float64(max(to, from+1)) / 1000,
		Title: part.title(from, to), Subtitle: part.subtitle(from, to), Parts: []pagePart{},
		Shares: []float64{}}
	for _, use := range part.Uses(from, max(to, from+1)) {
		v.Shares = append(v.Shares, use.Share)
	}
	if parts != nil {
		for _, p := range []pagePart{
			{"steps", parts.Step, palette.Hex(colours[Step])},
			{"waiting for loads", parts.WaitFor.Load, palette.Hex(colours[Load])},
			{"waiting for augment=", parts.WaitFor.Augment, palette.Hex(colours[Augment])},
			{"waiting for a processor", parts.WaitFor.Delay, palette.Hex(colours[Delay])},
			{"waiting for a server", parts.WaitFor.Fetch, palette.Hex(colours[Fetch])},
			{"waiting for gathers", parts.WaitFor.Gather, palette.Hex(colours[Gather])},
			{"waiting for batch_augment=", parts.WaitFor.BatchAugment, palette.Hex(colours[BatchAugment])},
			{"waiting for transfers", parts.WaitFor.Transfer, palette.Hex(colours[Transfer])},
			{"waiting for nothing recorded", parts.WaitFor.Other, palette.Hex(colours[Other])},
		} {
			if p.Seconds > 0 {
				v.Parts = append(v.Parts, p)
			}
		}
	}
	return v
}

// clipped returns the part of a trace between two moments, and cuts spans at both.
func (t *Trace) clipped(from, to int64) *Trace {
	part := t.between(from, to)
	for _, l := range part.Loaders {
		for _, track := range l.Tracks {
			track.Spans = slices.DeleteFunc(track.Spans,
				func(s Span) bool { return s.End <= from && s.Start < from || s.Start >= to })
			for k := range track.Spans {
				s := &track.Spans[k]
				s.Start, s.End = max(s.Start, from), min(s.End, to)
			}
		}
	}
	return part
}

// between returns the part of a trace whose spans touch the time between two moments. Its tracks
// are new; other fields of its loaders are shared.
func (t *Trace) between(from, to int64) *Trace {
	part := &Trace{names: t.names}
	for _, l := range t.Loaders {
		copied := *l
		copied.Tracks = nil
		for _, track := range l.Tracks {
			copied.Tracks = append(copied.Tracks,
				&Track{Number: track.Number, Name: track.Name, Spans: track.touching(from, to)})
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

// title says how long the training loops waited between two moments.
func (t *Trace) title(from, to int64) string {
	var step, wait int64
	for _, l := range t.Loaders {
		if loop := l.Loop(); loop != nil {
			for k := range loop.Spans {
				switch s := &loop.Spans[k]; s.Kind {
				case Step:
					step += max(min(s.End, to)-max(s.Start, from), 0)
				case Wait:
					wait += max(min(s.End, to)-max(s.Start, from), 0)
				}
			}
		}
	}
	if step+wait == 0 {
		return "Timeline"
	}
	whose := "The training loop waited %s of its time"
	if len(t.Loaders) > 1 {
		whose = "The training loops waited %s of their time"
	}
	return fmt.Sprintf(whose, percent(float64(wait)/float64(step+wait)))
}

func (t *Trace) subtitle(from, to int64) string {
	return fmt.Sprintf("%s spans in %.3g s", thousands(t.Spans()), seconds(to-from))
}

// heading names the loader and its settings.
func (l *Loader) heading() string {
	text := l.Name()
	if n, ok := l.setting("num_workers"); ok {
		text += fmt.Sprintf("   num_workers=%d", n)
	}
	if n, ok := l.setting("batch_size"); ok {
		text += fmt.Sprintf("   batch_size=%d", n)
	}
	if n, ok := l.setting("prefetch_factor"); ok {
		text += fmt.Sprintf("   prefetch_factor=%d", n)
	}
	return text
}

func (t *Trace) kinds() (there [kinds]bool) {
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			for k := range track.Spans {
				there[track.Spans[k].Kind] = true
			}
		}
	}
	return there
}

func percent(share float64) string {
	if share >= 0.0995 {
		return fmt.Sprintf("%.0f %%", share*100)
	}
	return fmt.Sprintf("%.1f %%", share*100)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for k := len(s) - 3; k > 0; k -= 3 {
		s = s[:k] + "," + s[k:]
	}
	return s
}
