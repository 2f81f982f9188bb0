package dir

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// line is a line of a manifest.
type line struct {
	name   string
	label  string // "": none
	number int    // number of the line, from 1
}

// page finds the beginning of a page of HTML.
var page = regexp.MustCompile(`(?i)^\s*<(!doctype\s|html[\s>])`)

// parseManifest reads lines `path` or `path,label`. The separator is a tab if the first line has
// one, else a comma. Names with a separator, a quote or a line break are quoted like in CSV. Empty
// lines are skipped. A first line that is just `path`, or `path` and `label`, is a header (write
// ./path for a file of that name). Paths are slash-separated and below the folder. A path may occur
// twice. Errors are ErrInvalid, with the number of the line.
func parseManifest(r io.Reader) (lines []line, labelled bool, err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	// a byte order mark, which some spreadsheets write
	if mark, _ := b.Peek(3); bytes.Equal(mark, []byte("\xEF\xBB\xBF")) {
		if _, err := b.Discard(len(mark)); err != nil {
			return nil, false, err
		}
	}
	c := csv.NewReader(b)
	c.ReuseRecord = true
	first, err := b.Peek(b.Size())
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if page.Match(first) {
		return nil, false, fmt.Errorf("%w: it is a page of HTML and lists no files; look at it in a browser, to see what the server "+
			"had to say", source.ErrInvalid)
	}
	if first, _, _ = bytes.Cut(bytes.TrimLeft(first, "\r\n"), []byte("\n")); bytes.IndexByte(first, '\t') >= 0 {
		c.Comma = '\t'
	}
	for {
		record, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			var syntax *csv.ParseError
			if errors.As(err, &syntax) {
				err = fmt.Errorf("%w: %w", source.ErrInvalid, err)
			}
			return nil, false, err
		}
		number, _ := c.FieldPos(0)
		invalid := func(format string, args ...any) ([]line, bool, error) {
			return nil, false, fmt.Errorf("%w: line %d "+format, append([]any{source.ErrInvalid, number}, args...)...)
		}
		l := line{name: record[0], number: number}
		switch len(record) {
		case 1:
		case 2:
			l.label, labelled = strings.TrimSpace(record[1]), true
		default:
			return invalid("has %d columns, a line has a path and at most a label; quote names that "+
				"contain a separator", len(record))
		}
		if number == 1 && l.name == "path" && (len(record) == 1 || l.label == "label") {
			continue
		}
		name := path.Clean(l.name)
		if l.name == "" || !below(name) {
			return invalid("%q is not a path below the folder", l.name)
		}
		// Clone: the record's strings keep the whole line in memory.
		l.name, l.label = strings.Clone(name), strings.Clone(l.label)
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return nil, false, fmt.Errorf("%w: the manifest lists no files", source.ErrInvalid)
	}
	return lines, labelled, nil
}

// listed lists the files of the manifest.
func (o *settings) listed(ctx context.Context, place *source.Place, root string) (*listing, error) {
	if place.Objects() == nil {
		if err := isFolder(root); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(o.Manifest, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%w: the manifest %s is not a regular file", source.ErrInvalid, o.Manifest))
	}
	lines, labelled, err := parseManifest(f)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", o.Manifest, err)
	}
	l, names := &listing{}, make([]string, len(lines))
	for i, line := range lines {
		names[i] = line.name
	}
	var labels []int64
	switch o.Labels {
	case noLabels:
		if labelled {
			l.Notes = append(l.Notes, source.Note{Name: "labels",
				Text: "the labels of the manifest are not read: labels is " + noLabels})
		}
	case labelsListed:
		if labels, l.Classes, err = labelsOf(lines); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", o.Manifest, err)
		}
	case labelsOfFolders:
		// Classes are all folders, even without listed files, so that the parts of a split dataset
		// agree on the numbers.
		var all *classes
		if l.Folders, all, err = o.folders(ctx, place, root); err != nil {
			return nil, err
		}
		all.sort()
		labels, l.Classes, l.Notes = all.label(names), all.names, all.notes(false)
		if i := slices.Index(labels, -1); i >= 0 {
			return nil, fmt.Errorf("%w: manifest %s: line %d: %s is not in the folder of a class",
				source.ErrInvalid, o.Manifest, lines[i].number, names[i])
		}
	}
	if place.Objects() == nil && o.Index != "" {
		l.addFolders(root, names) // before their files are looked at
	}
	stamps := make([]source.Stamp, len(names))
	if err := source.Each(ctx, len(names), lookups, share, func(_ context.Context, i int) (err error) {
		if stamps[i], err = place.Stamp(ctx, place.Join(root, names[i])); err != nil {
			err = fmt.Errorf("manifest %s: line %d: %w", o.Manifest, lines[i].number, err)
		}
		return err
	}); err != nil {
		return nil, err
	}
	l.Notes = append(l.Notes, place.Notes()...)
	b := newBuilder(o.listFolder())
	defer b.close()
	for i, name := range names {
		var label int64
		if labels != nil {
			label = labels[i]
		}
		if err := b.add(name, stamps[i], label); err != nil {
			return nil, err
		}
	}
	if l.files, err = b.done(labels != nil); err == nil {
		err = l.files.measure(ctx)
	}
	return l, err
}

// addFolders adds the folders of files, so that an index knows when one of these is replaced.
func (l *listing) addFolders(root string, names []string) {
	known := map[string]bool{}
	for _, f := range l.Folders {
		known[f.Name] = true
	}
	for _, name := range names {
		of := above(name)
		if known[of] {
			continue
		}
		known[of] = true
		if info, err := os.Stat(path.Join(root, of)); err == nil { // else its file is an error, with the line
			l.Folders = append(l.Folders, folder{of, info.ModTime().UnixNano()})
		}
	}
}

// folders returns the classes, and what an index must know of their folders.
func (o *settings) folders(ctx context.Context, place *source.Place, root string) ([]folder, *classes, error) {
	objects := place.Objects()
	if objects == nil {
		w := walk{root: root, flat: true, keep: func(string) bool { return false }}
		err := w.run(ctx)
		return w.folders, &w.classes, err
	}
	var all classes
	err := objects.List(ctx, root+"/", func(name string, _ source.Stamp) error {
		if class, inside := classOf(strings.TrimPrefix(name, root+"/")); inside {
			all.add(class)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("labels: folders needs a list of all folders: %w; or give each line of the manifest a label, "+
			"with labels: manifest", err)
	}
	return nil, &all, err
}

// isFolder returns nil for a folder, ErrInvalid for another file, or an error of the system.
func isFolder(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%w: %s is not a folder", source.ErrInvalid, path)
	}
	return err
}
