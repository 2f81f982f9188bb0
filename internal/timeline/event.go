package timeline

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// event is one element of traceEvents.
type event struct {
	Ph   string  `json:"ph"`
	PID  int     `json:"pid"`
	TID  int     `json:"tid"`
	TS   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	Name string  `json:"name"`
	Args args    `json:"args"`
}

type args struct {
	Name    string `json:"name"`
	Epoch   int32  `json:"epoch"`
	Batch   int32  `json:"batch"`
	Index   int64  `json:"index"`
	Samples int32  `json:"samples"`
	Hits    int32  `json:"hits"`
	Misses  int32  `json:"misses"`
	Bytes   int64  `json:"bytes"`
}

// absent marks a time that an event does not have.
const absent = -1 << 60

var nothing = event{TS: absent, Dur: absent,
	Args: args{Epoch: -1, Batch: -1, Index: -1, Samples: -1, Hits: -1, Misses: -1, Bytes: -1}}

// parseEvent reads an event. Its own scanner reads the form that recorders write, several times
// faster than package json, which reads all other forms.
func parseEvent(text []byte) (event, error) {
	e := nothing
	s := scanner{text: text}
	if s.event(&e) {
		return e, nil
	}
	e = nothing
	err := json.Unmarshal(text, &e)
	return e, err
}

// scanner reads an event in the usual form: no escapes in strings, and only the members of the
// format. Its methods return false for any other form.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\n' || s.text[s.at] == '\r' ||
		s.text[s.at] == '\t') {
		s.at++
	}
}

func (s *scanner) is(c byte) bool {
	s.space()
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

// word reads a string without escapes.
func (s *scanner) word() ([]byte, bool) {
	if !s.is('"') {
		return nil, false
	}
	n := bytes.IndexByte(s.text[s.at:], '"')
	if n < 0 {
		return nil, false
	}
	word := s.text[s.at : s.at+n]
	for _, c := range word {
		if c == '\\' || c < ' ' || c >= 0x80 {
			return nil, false
		}
	}
	s.at += n + 1
	return word, true
}

// digits reads a number, and says whether it is a whole one of at most 18 digits.
func (s *scanner) digits() (text []byte, whole bool) {
	s.space()
	begin := s.at
	whole = true
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c >= '0' && c <= '9':
		case c == '-' && s.at == begin:
		case c == '.' && s.at > begin && whole:
			whole = false
		default:
			return s.text[begin:s.at], whole && s.at-begin <= 18
		}
	}
	return s.text[begin:s.at], whole && s.at-begin <= 18
}

func (s *scanner) int() (n int64, ok bool) {
	text, whole := s.digits()
	if !whole {
		return 0, false
	}
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	if len(text) == 0 || len(text) > 1 && text[0] == '0' {
		return 0, false
	}
	for _, c := range text {
		n = 10*n + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

func (s *scanner) float() (float64, bool) {
	text, _ := s.digits()
	if len(text) == 0 || text[0] != '-' && (text[0] < '0' || text[0] > '9') || text[len(text)-1] == '.' ||
		len(text) > 1 && text[0] == '0' && text[1] != '.' || text[0] == '-' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(text), 64)
	return f, err == nil
}

func (s *scanner) int32(to *int32) bool {
	n, ok := s.int()
	*to = int32(n)
	return ok && int64(int32(n)) == n
}

// members reads an object and calls value for each key, to read the value.
func (s *scanner) members(value func(key []byte) bool) bool {
	if !s.is('{') {
		return false
	}
	if s.is('}') {
		return true
	}
	for {
		key, ok := s.word()
		if !ok || !s.is(':') || !value(key) {
			return false
		}
		if s.is('}') {
			return true
		}
		if !s.is(',') {
			return false
		}
	}
}

func (s *scanner) event(e *event) bool {
	whole := s.members(func(key []byte) (ok bool) {
		var n int64
		var word []byte
		switch string(key) {
		case "ph":
			word, ok = s.word()
			e.Ph = string(word)
		case "name":
			word, ok = s.word()
			e.Name = string(word)
		case "pid":
			n, ok = s.int()
			e.PID = int(n)
		case "tid":
			n, ok = s.int()
			e.TID = int(n)
		case "ts":
			e.TS, ok = s.float()
		case "dur":
			e.Dur, ok = s.float()
		case "args":
			ok = s.args(&e.Args)
		}
		return ok
	})
	s.space()
	return whole && s.at == len(s.text)
}

func (s *scanner) args(a *args) bool {
	return s.members(func(key []byte) (ok bool) {
		switch string(key) {
		case "epoch":
			ok = s.int32(&a.Epoch)
		case "batch":
			ok = s.int32(&a.Batch)
		case "samples":
			ok = s.int32(&a.Samples)
		case "hits":
			ok = s.int32(&a.Hits)
		case "misses":
			ok = s.int32(&a.Misses)
		case "index":
			a.Index, ok = s.int()
		case "bytes":
			a.Bytes, ok = s.int()
		}
		return ok
	})
}
