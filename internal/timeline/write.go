package timeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// Write writes a trace in the format of docs/spec/trace.md.
func Write(w io.Writer, t *Trace) error {
	out := bufio.NewWriterSize(w, 1<<20)
	about, err := json.Marshal(map[string]any{"format": format, "version": Version, "ranks": t.Loaders})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "{\"displayTimeUnit\":\"ms\",\n\"otherData\":%s,\n\"traceEvents\":[\n", about)
	separator := ""
	line := func(format string, args ...any) {
		fmt.Fprintf(out, separator+format, args...)
		separator = ",\n"
	}
	for _, l := range t.Loaders {
		name := l.Name()
		if l.WorldSize > 1 {
			name = fmt.Sprintf("rank %d of %d", l.Rank, l.WorldSize)
		}
		line(`{"ph":"M","pid":%d,"name":"process_name","args":{"name":%s}}`, l.PID, quoted(name))
		line(`{"ph":"M","pid":%d,"name":"process_sort_index","args":{"sort_index":%d}}`, l.PID, l.Rank)
		for _, track := range l.Tracks {
			tid := tidsOfLoader*l.PID + track.Number
			line(`{"ph":"M","pid":%d,"tid":%d,"name":"thread_name","args":{"name":%s}}`, l.PID, tid, quoted(track.Name))
			line(`{"ph":"M","pid":%d,"tid":%d,"name":"thread_sort_index","args":{"sort_index":%d}}`, l.PID, tid,
				track.Number)
		}
	}
	var b []byte
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			for k := range track.Spans {
				s := &track.Spans[k]
				b = append(b[:0], separator...)
				b = fmt.Appendf(b, `{"ph":"X","pid":%d,"tid":%d,"ts":`, l.PID, tidsOfLoader*l.PID+track.Number)
				b = strconv.AppendFloat(b, float64(s.Start)/1000, 'f', 3, 64)
				b = append(b, `,"dur":`...)
				b = strconv.AppendFloat(b, float64(s.Length())/1000, 'f', 3, 64)
				b = fmt.Appendf(b, `,"name":%s,"args":{`, quoted(t.Name(s)))
				comma := ""
				for _, arg := range s.args() {
					b = fmt.Appendf(b, `%s"%s":%d`, comma, arg.name, arg.value)
					comma = ","
				}
				b = append(b, "}}"...)
				if _, err := out.Write(b); err != nil {
					return err
				}
			}
		}
	}
	fmt.Fprint(out, "\n]}\n")
	return out.Flush()
}

type arg struct {
	name  string
	value int64
}

// args returns the known arguments of a span.
func (s *Span) args() (known []arg) {
	for _, a := range []arg{{"epoch", int64(s.Epoch)}, {"batch", int64(s.Batch)}, {"index", s.Index},
		{"samples", int64(s.Samples)}, {"hits", int64(s.Hits)}, {"misses", int64(s.Misses)}, {"bytes", s.Bytes}} {
		if a.value >= 0 {
			known = append(known, a)
		}
	}
	return known
}

func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // marshalling a string cannot fail
	}
	return string(b)
}
