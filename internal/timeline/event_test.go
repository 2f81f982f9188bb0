package timeline

import (
	"encoding/json"
	"testing"
)

// sameAsJSON fails if the scanner reads an event differently than package json.
func sameAsJSON(t *testing.T, text string) (fast bool) {
	t.Helper()
	e := nothing
	s := scanner{text: []byte(text)}
	if !s.event(&e) {
		return false
	}
	want := nothing
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Errorf("%q: the scanner takes it, package json says: %v", text, err)
	} else if e != want {
		t.Errorf("%q:\n%+v\n%+v", text, e, want)
	}
	return true
}

// Ensure that events of recorders are read without package json, and all others by it.
func TestEvents(t *testing.T) {
	for text, fast := range map[string]bool{
		`{"ph":"X","pid":1,"tid":10010,"ts":1503.125,"dur":480.500,"name":"load","args":{"epoch":0,"batch":3,"index":1717}}`:                                       true,
		`{"ph": "X", "pid": 1, "tid": 10001, "ts": 0.000, "dur": 0.125, "name": "wait", "args": {"samples": 64, "hits": 60, "misses": 4, "bytes": 1099511627776}}`: true,
		"{\n \"ph\" : \"X\" , \"args\" : { } }": true,
		`{}`:                                    true,
		`{"ts":-1.5}`:                           false,
		`{"ts":1e3}`:                            false,
		`{"ts":null}`:                           false,
		`{"pid":1.0}`:                           false,
		`{"pid":-3}`:                            true,
		`{"pid":01}`:                            false,
		`{"ts":01.5}`:                           false,
		`{"ts":1.}`:                             false,
		`{"pid":9223372036854775807}`:           false,
		`{"name":"a\"b"}`:                       false,
		`{"name":"ü"}`:                          false,
		`{"cat":"x"}`:                           false,
		`{"args":{"epoch":4294967296}}`:         false,
		`{"args":{"other":[1,{"a":"}"}]}}`:      false,
		`{"ph":"M","name":"thread_name","args":{"name":"x"}}`: false,
		`{"ph":"X",}`: false,
		`{"ph":"X"}}`: false,
		`{"ph":"X"`:   false,
		``:            false,
	} {
		if got := sameAsJSON(t, text); got != fast {
			t.Errorf("%q: read by the scanner: %v, want %v", text, got, fast)
		}
		e, err := parseEvent([]byte(text))
		want := nothing
		if jsonErr := json.Unmarshal([]byte(text), &want); (err == nil) != (jsonErr == nil) || err == nil && e != want {
			t.Errorf("%q: %+v, %v; want %+v, %v", text, e, err, want, jsonErr)
		}
	}
}

// Ensure that the scanner never reads an event differently than package json.
func FuzzEvent(f *testing.F) {
	f.Add(`{"ph":"X","pid":1,"tid":10010,"ts":1503.125,"dur":480.500,"name":"load","args":{"epoch":0,"batch":3,"index":1717}}`)
	f.Add(`{"ph": "X", "ts": 0.5, "args": {"bytes": 12}, "args": {}}`)
	f.Fuzz(func(t *testing.T, text string) { sameAsJSON(t, text) })
}
