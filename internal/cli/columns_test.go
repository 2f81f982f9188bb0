package cli

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/cli/table"
)

// Ensure that a dimension that differs between samples is "?" for people and null for programs.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		shape      shape
		text, json string
	}{{shape{3, math.MaxUint64}, "3,?", "[3,null]"}, {shape{}, "-", "[]"}} {
		b, err := json.Marshal(c.shape)
		if err != nil || string(b) != c.json || table.Text(c.shape) != c.text {
			t.Errorf("%#v: %s and %s, %v; want %s and %s", c.shape, table.Text(c.shape), b, err, c.text, c.json)
		}
	}
}

// Ensure that every field name is valid, and used once in a table.
func TestColumns(t *testing.T) {
	for name, fields := range map[string][]string{
		"create": fieldsOf(createColumns), "ls": fieldsOf(lsColumns), "stats": fieldsOf(statsColumns),
		"watch": fieldsOf(watchColumns), "verify": fieldsOf(verifyColumns),
		"rm": fieldsOf(rmColumns), "gc": fieldsOf(gcColumns), "version": fieldsOf(versionColumns),
		"header": fieldsOf(headerColumns), "field": fieldsOf(fieldColumns),
		"region": fieldsOf(regionColumns), "control": fieldsOf(controlColumns), "client": fieldsOf(clientColumns),
		"sample": fieldsOf(sampleColumns), "simulate": fieldsOf(simulateColumns),
		"advise": fieldsOf(adviseColumns), "point": fieldsOf(pointColumns),
	} {
		seen := map[string]bool{}
		for _, f := range fields {
			if seen[f] || f == "" || strings.Trim(f, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Errorf("%s: field %q", name, f)
			}
			seen[f] = true
		}
	}
}

func fieldsOf[T any](cs table.Columns[T]) (fields []string) {
	for _, c := range cs {
		fields = append(fields, c.Field)
	}
	return fields
}
