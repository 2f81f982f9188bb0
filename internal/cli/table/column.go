// Package table writes the output of a command: as a table, as a list, as JSON, and as the part of
// a help text that explains them.
//
// A command describes its output once, as Columns (column.go), so that the four cannot disagree.
// Values (value.go) have one form for people and another for programs. Text from segments and
// servers cannot control a terminal. For that the package imports control.
package table

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/stocached/stocached/control"
)

// Column is one fact that a command prints about a T. Table, list, JSON and help text are all made
// from it.
type Column[T any] struct {
	Field string // in JSON; never renamed
	Title string // heading of the table, in capitals, and label of the list; "": in JSON only
	Wide  bool   // in lists and JSON, not in the table
	Help  string // its meaning, in a line
	Value func(T) any
}

type Columns[T any] []Column[T]

// Shown makes a column of tables, lists and JSON.
func Shown[T any](field, title, help string, value func(T) any) Column[T] {
	return Column[T]{field, title, false, help, value}
}

// Listed makes a column of lists and JSON that is too wide for tables.
func Listed[T any](field, title, help string, value func(T) any) Column[T] {
	return Column[T]{field, title, true, help, value}
}

// InJSON makes a column of JSON only.
func InJSON[T any](field, help string, value func(T) any) Column[T] {
	return Column[T]{field, "", false, help, value}
}

// Table writes a line for each row under a heading; nothing for no rows.
func (cs Columns[T]) Table(w io.Writer, rows []T) error { return cs.Within(w, rows, math.MaxInt) }

// Within is Table, but if a line has more than so many characters, one space separates columns, and
// not two.
func (cs Columns[T]) Within(w io.Writer, rows []T, width int) error {
	if len(rows) == 0 {
		return nil
	}
	lines := [][]string{cs.Titles()}
	for _, row := range rows {
		lines = append(lines, cs.Cells(row))
	}
	text := aligned(lines, 2)
	if widest(text) > width {
		text = aligned(lines, 1)
	}
	_, err := io.WriteString(w, text)
	return err
}

// aligned puts cells below each other, with so many spaces between columns.
func aligned(lines [][]string, gap int) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, gap, ' ', 0)
	for _, cells := range lines {
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
	return b.String()
}

func widest(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, utf8.RuneCountInString(strings.TrimRight(line, " \n")))
	}
	return columns
}

// Whole returns the columns with the wide ones in tables too.
func (cs Columns[T]) Whole() Columns[T] {
	all := slices.Clone(cs)
	for k := range all {
		all[k].Wide = false
	}
	return all
}

func (cs Columns[T]) Titles() (titles []string) {
	for _, c := range cs {
		if c.Title != "" && !c.Wide {
			titles = append(titles, strings.ToUpper(c.Title))
		}
	}
	return titles
}

func (cs Columns[T]) Cells(row T) (cells []string) {
	for _, c := range cs {
		if c.Title != "" && !c.Wide {
			cells = append(cells, Text(c.Value(row)))
		}
	}
	return cells
}

// List writes a line for each column of one row.
func (cs Columns[T]) List(w io.Writer, row T) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range cs {
		if c.Title != "" {
			fmt.Fprintf(tw, "%s\t%s\n", c.Title, Text(c.Value(row)))
		}
	}
	return tw.Flush()
}

// Rows writes a table, or a JSON array.
func (cs Columns[T]) Rows(w io.Writer, rows []T, asJSON bool) error {
	if asJSON {
		return WriteJSON(w, cs.Objects(rows))
	}
	return cs.Table(w, rows)
}

// One writes a list, or a JSON object.
func (cs Columns[T]) One(w io.Writer, row T, asJSON bool) error {
	if asJSON {
		return WriteJSON(w, cs.Object(row))
	}
	return cs.List(w, row)
}

// Explain returns the part of a help text that explains each column and field.
func (cs Columns[T]) Explain(heading string) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range cs {
		title := c.Title
		switch {
		case title == "":
			title = "-"
		case !c.Wide:
			title = strings.ToUpper(title)
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", title, c.Field, strings.Join(strings.Fields(c.Help), " "))
	}
	tw.Flush()
	return heading + " (shown as, field in JSON, meaning):\n" + strings.TrimRight(b.String(), "\n")
}

// Object is a JSON object whose fields keep their order.
type Object []struct {
	Name  string
	Value any
}

func (o *Object) Add(name string, value any) {
	*o = append(*o, struct {
		Name  string
		Value any
	}{name, value})
}

func (o Object) MarshalJSON() ([]byte, error) {
	b := bytes.NewBufferString("{")
	for k, f := range o {
		if k > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(f.Value)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		fmt.Fprintf(b, "%q:%s", f.Name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Object makes the JSON object of a row.
func (cs Columns[T]) Object(row T) (o Object) {
	for _, c := range cs {
		o.Add(c.Field, c.Value(row))
	}
	return o
}

func (cs Columns[T]) Objects(rows []T) []Object {
	objects := make([]Object, len(rows))
	for k, row := range rows {
		objects[k] = cs.Object(row)
	}
	return objects
}

// WriteJSON writes one value and a newline, indented.
func WriteJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", Escaped(b))
	return err
}

// Escaped escapes the characters that JSON allows in strings and that would control a terminal.
func Escaped(text []byte) []byte {
	var b []byte
	for _, r := range string(text) {
		if r != '\n' && control.Unprintable(r) {
			b = fmt.Appendf(b, `\u%04x`, r)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// Value returns the value of a field; nil: there is none.
func (o Object) Value(name string) any {
	value, _ := o.find(name)
	return value
}

// find returns the value of a field, and whether there is one.
func (o Object) find(name string) (value any, has bool) {
	for _, f := range o {
		if f.Name == name {
			return f.Value, true
		}
	}
	return nil, false
}

func (o Object) Has(name string) bool {
	_, has := o.find(name)
	return has
}
