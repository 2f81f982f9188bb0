package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/stocached/stocached/control"
)

// column is one thing that a command says about a T. Table, list, JSON and help text are all made from it, so that they cannot disagree.
type column[T any] struct {
	field string // in JSON; never renamed
	title string // heading of the table, in capitals, and label of the list; "": in JSON only
	wide  bool   // in lists and JSON, not in the table
	help  string // what it is, in a line
	value func(T) any
}

type columns[T any] []column[T]

// table writes a line for each row under a heading. Nothing for no rows.
func (cs columns[T]) table(w io.Writer, rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(cs.titles(), "\t"))
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(cs.cells(row), "\t"))
	}
	return tw.Flush()
}

// whole has the wide columns in its table as well.
func (cs columns[T]) whole() columns[T] {
	all := slices.Clone(cs)
	for k := range all {
		all[k].wide = false
	}
	return all
}

func (cs columns[T]) titles() (titles []string) {
	for _, c := range cs {
		if c.title != "" && !c.wide {
			titles = append(titles, strings.ToUpper(c.title))
		}
	}
	return titles
}

func (cs columns[T]) cells(row T) (cells []string) {
	for _, c := range cs {
		if c.title != "" && !c.wide {
			cells = append(cells, text(c.value(row)))
		}
	}
	return cells
}

// list writes a line for each thing about one row.
func (cs columns[T]) list(w io.Writer, row T) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range cs {
		if c.title != "" {
			fmt.Fprintf(tw, "%s\t%s\n", c.title, text(c.value(row)))
		}
	}
	return tw.Flush()
}

// rows writes a table, or a JSON array.
func (cs columns[T]) rows(w io.Writer, rows []T, asJSON bool) error {
	if asJSON {
		return writeJSON(w, cs.objects(rows))
	}
	return cs.table(w, rows)
}

// one writes a list, or a JSON object.
func (cs columns[T]) one(w io.Writer, row T, asJSON bool) error {
	if asJSON {
		return writeJSON(w, cs.object(row))
	}
	return cs.list(w, row)
}

// explain is the part of a help text that says what each column and field is.
func (cs columns[T]) explain(heading string) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range cs {
		title := c.title
		switch {
		case title == "":
			title = "-"
		case !c.wide:
			title = strings.ToUpper(title)
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", title, c.field, c.help)
	}
	tw.Flush()
	return heading + " (shown as, field in JSON, meaning):\n" + strings.TrimRight(b.String(), "\n")
}

// object is a JSON object whose fields keep their order.
type object []struct {
	name  string
	value any
}

func (o *object) add(name string, value any) {
	*o = append(*o, struct {
		name  string
		value any
	}{name, value})
}

func (o object) MarshalJSON() ([]byte, error) {
	b := bytes.NewBufferString("{")
	for k, f := range o {
		if k > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.name, err)
		}
		fmt.Fprintf(b, "%q:%s", f.name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// object makes the JSON object of a row.
func (cs columns[T]) object(row T) (o object) {
	for _, c := range cs {
		o.add(c.field, c.value(row))
	}
	return o
}

func (cs columns[T]) objects(rows []T) []object {
	objects := make([]object, len(rows))
	for k, row := range rows {
		objects[k] = cs.object(row)
	}
	return objects
}

// writeJSON writes one value and a newline, indented.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", escaped(b))
	return err
}

// escaped escapes what JSON allows in strings and what does something to a terminal.
func escaped(text []byte) []byte {
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

func (o object) has(name string) bool {
	for _, f := range o {
		if f.name == name {
			return true
		}
	}
	return false
}
