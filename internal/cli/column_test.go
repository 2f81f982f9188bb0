package cli

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// Ensure that what is unknown is "-" for people and null for programs, and that nothing in a string moves a cursor.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		value      any
		text, json string
	}{
		{nil, "-", "null"}, {"", "-", `""`}, {true, "yes", "true"}, {count(1234567), "1,234,567", "1234567"}, {count(12), "12", "12"},
		{fraction(1, 4), "0.2500", "0.25"}, {fraction(0, 0), "-", "null"}, {perSecond(math.Inf(1)), "-", "null"}, {perSecond(0.26), "0.3", "0.26"},
		{perSecond(12345.6), "12,346", "12345.6"}, {bytesPerSecond(2048), "2.0 KiB/s", "2048"}, {bytesPerSecond(math.NaN()), "-", "null"},
		{moment{}, "-", "null"}, {moment(time.Unix(0, 0)), "-", "null"}, {list[int](nil), "-", "[]"}, {list[int]{1, 2}, "1,2", "[1,2]"},
		{"a\x1b[2Jb", `"a\x1b[2Jb"`, `"a\u001b[2Jb"`}, {"bad\xff", `"bad\xff"`, `"bad\ufffd"`}, {"schön", "schön", `"schön"`},
		{shape{3, math.MaxUint64}, "3,?", "[3,null]"}, {shape{}, "-", "[]"},
	} {
		b, err := json.Marshal(c.value)
		if err != nil || string(b) != c.json || text(c.value) != c.text {
			t.Errorf("%#v: %s and %s, %v; want %s and %s", c.value, text(c.value), b, err, c.text, c.json)
		}
	}
}

// Ensure that every name of a field is used once in a table, and is one.
func TestColumns(t *testing.T) {
	for name, fields := range map[string][]string{
		"create": fieldsOf(createColumns), "ls": fieldsOf(lsColumns), "stats": fieldsOf(statsColumns), "watch": fieldsOf(watchColumns), "verify": fieldsOf(verifyColumns),
		"rm": fieldsOf(rmColumns), "gc": fieldsOf(gcColumns), "version": fieldsOf(versionColumns), "header": fieldsOf(headerColumns), "field": fieldsOf(fieldColumns),
		"region": fieldsOf(regionColumns), "control": fieldsOf(controlColumns), "client": fieldsOf(clientColumns), "sample": fieldsOf(sampleColumns),
	} {
		seen := map[string]bool{}
		for _, f := range fields {
			if seen[f] || f == "" || strings.Trim(f, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Errorf("%s: field %q", name, f)
			}
			seen[f] = true
		}
	}
	for total, change := range inInterval {
		contains(t, strings.Join(fieldsOf(statsColumns), " "), total)
		contains(t, strings.Join(fieldsOf(watchColumns), " "), change)
	}
}

func fieldsOf[T any](cs columns[T]) (fields []string) {
	for _, c := range cs {
		fields = append(fields, c.field)
	}
	return fields
}
