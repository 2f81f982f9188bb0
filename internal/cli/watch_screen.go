package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stocached/stocached/internal/cli/table"
)

// inInterval says which change stands beside which total: field of watchColumns by field of
// statsColumns.
var inInterval = map[string]string{
	"hits": "hits_per_second", "misses": "misses_per_second", "hit_rate": "interval_hit_rate",
	"stored": "stored_per_second", "busy": "interval_busy",
	"full": "interval_full", "evicted": "evicted_per_second", "ready_bytes": "stored_bytes_per_second",
}

// screen redraws a terminal: totals and changes of one cache side by side, or a line for each
// cache.
func (w *watch) screen(stdout io.Writer, changes []change, _ uint64) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "stocached stats, every %v, %s; Ctrl-C ends it\n\n", w.interval, table.Clock(time.Now()))
	switch {
	case len(changes) == 0:
		fmt.Fprintf(&b, "no caches in %s\n", w.dir.shown())
	case w.name != "":
		sideBySide(&b, changes[0])
	default:
		if err := watchColumns.Table(&b, changes); err != nil {
			return err
		}
	}
	width, height := terminalSize(stdout)
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	lines = lines[:min(len(lines), max(height-1, 1))]
	// Move home, write each line and clear its rest, then clear the rest of the screen. So the
	// screen does not flicker.
	const home, clearLine, clearRest = "\x1b[H", "\x1b[K\n", "\x1b[J"
	var out strings.Builder
	out.WriteString(home)
	for _, line := range lines {
		if r := []rune(line); len(r) > width {
			line = string(r[:width])
		}
		out.WriteString(line + clearLine)
	}
	out.WriteString(clearRest)
	_, err := io.WriteString(stdout, out.String())
	return err
}

// sideBySide writes one line for each column of stats, with the change in the interval beside the
// total. With the policy cost, the last epoch and a predicted one follow.
func sideBySide(b *bytes.Buffer, c change) {
	changes := map[string]string{}
	for _, column := range watchColumns {
		changes[column.Field] = table.Text(column.Value(c))
	}
	e := c.now.epochs
	if e != nil && e.why != "" {
		fmt.Fprintf(b, "nothing to predict yet: %s\n\n", e.why)
		e = nil
	}
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "\tTOTAL\tLAST INTERVAL")
	if e != nil {
		fmt.Fprint(tw, "\tLAST EPOCH\tPREDICTED")
	}
	fmt.Fprintln(tw)
	for _, column := range c.now.columns() {
		if column.Title == "" || column.Wide {
			continue
		}
		field := inInterval[column.Field]
		change := changes[field]
		if strings.HasSuffix(field, "_per_second") && change != "-" && !strings.HasSuffix(change, "/s") {
			change += "/s"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s", column.Title, table.Text(column.Value(c.now)), change)
		if beside, ok := besideTotals[column.Field]; ok && e != nil {
			fmt.Fprintf(tw, "\t%s\t%s", table.Text(beside.observed(e)), table.Text(beside.predicted(e)))
		} else if e != nil {
			fmt.Fprint(tw, "\t\t") // the columns go on
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()
}
