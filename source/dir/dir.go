// Package dir reads a tree of files: a file is a sample.
//
// Samples are in the byte order of their slash-separated paths below the folder, or in the order of
// a manifest. Without labels a sample is a file's bytes, in one field `data`. With labels it has
// the fields `data` and `label`.
//
// All regular files whose path matches the glob are samples, and so are symbolic links to them.
// Names that begin with a dot are left out, also those of folders, unless `hidden` is set. Hidden
// folders are classes all the same: docs/spec/sources.md. Symbolic
// links to folders are followed, like torchvision does, except a link to a folder above it, which
// would only repeat files. FIFOs, sockets and devices are never opened. The notes count what is
// skipped. A link to nothing is an error, because data is missing.
//
// Each read checks its file: if its size or a time (of modification, of creation) has changed since
// the source was opened, it is ErrChanged. A second change within the tick of the file system's clock
// (some ms before Linux 6.13) cannot be detected.
package dir

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"

	"github.com/bmatcuk/doublestar/v4"
)

const kind = "dir"

// Kind is this kind for the list in package kinds.
var Kind = source.Kind{Name: kind,
	Doc: "a tree of files, one a sample: path, and glob or manifest, labels, hidden, " +
		"descriptors, index", Open: open}

// Values of the key labels.
const (
	noLabels        = "none"
	labelsOfFolders = "folders"
	labelsListed    = "manifest"
)

// settings are the keys of this kind.
type settings struct {
	source.Remote `key:",squash"`

	Path     string `key:"path"`
	Glob     string `key:"glob"`     // which files, such as **/*.jpg; default all
	Manifest string `key:"manifest"` // a text file that lists the files, instead of glob
	Labels   string `key:"labels"`   // none, folders or manifest; default none
	Hidden   bool   `key:"hidden"`   // include names that begin with a dot
	// a file that keeps the list of files; default none: opening the source inspects all files
	Index string `key:"index"`
	// Descriptors is how many files stay open after a read, besides those of inflight reads.
	// Default: see open.
	Descriptors *int `key:"descriptors"`
}

// keptByDefault is the largest tree whose files all stay open by default. Measured on ext4, in the
// page cache, 1 goroutine (bare open, read, close; none kept; all kept): 4.1, 5.4 and 2.6 us for 4
// KiB, 21.5, 22.6 and 20.1 us for 110 KiB. It pays for small files, if all stay open. Samples are
// read once an epoch in a new order, so a list of C among N files hits C/N at best, and far less
// with LRU. If an open is a round trip, as on network file systems, set descriptors to the number
// of files.
const keptByDefault = 256

func open(ctx context.Context, s source.Settings) (source.Source, error) {
	var o settings
	if err := s.Decode(&o); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	place, err := o.Place(&o.Path)
	if err != nil {
		return nil, err
	}
	t, err := o.open(ctx, place)
	if err != nil {
		place.Close()
		return nil, err
	}
	return t, nil
}

// open opens the tree of a place.
func (o *settings) open(ctx context.Context, place *source.Place) (*tree, error) {
	root := strings.TrimRight(o.Path, "/")
	if place.Objects() == nil {
		var err error
		if root, err = filepath.Abs(o.Path); err != nil {
			return nil, err
		}
	}
	l, err := o.load(ctx, place, root)
	if err != nil {
		return nil, err
	}
	t, err := o.tree(place, root, l)
	if err != nil {
		l.files.close()
	}
	return t, err
}

// tree makes the source of a listing.
func (o *settings) tree(place *source.Place, root string, l *listing) (*tree, error) {
	schema, err := o.schema(root, l)
	if err != nil {
		return nil, err
	}
	t := &tree{root: root, place: place, files: l.files, schema: schema,
		info: source.Info{Kind: kind, Samples: len(l.files.records), Schema: schema, Fingerprint: l.Fingerprint, State: l.State, Notes: l.notes(),
			Traffic: place.Traffic()}}
	if place.Objects() != nil {
		return t, nil
	}
	kept := 0
	if t.info.Samples <= keptByDefault {
		kept = t.info.Samples
	}
	if o.Descriptors != nil {
		kept = *o.Descriptors
	}
	if kept > 0 {
		t.kept = source.NewOpenFiles[int, descriptor](kept)
	}
	return t, nil
}

// check returns ErrInvalid for invalid settings.
func (o *settings) check() error {
	o.Labels = cmp.Or(o.Labels, noLabels)
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{source.ErrInvalid}, args...)...)
	}
	if err := cmp.Or(source.RefuseAddress("index", o.Index, "stocached writes this file"),
		source.RefuseAddress("manifest", o.Manifest, "download the file, and name the copy")); err != nil {
		return err
	}
	switch {
	case o.Path == "":
		return invalid("no path")
	case o.Glob != "" && o.Manifest != "":
		return invalid("a manifest lists the files: leave out glob or manifest")
	case !doublestar.ValidatePattern(o.Glob):
		return invalid("glob %q is no pattern; such as **/*.{jpg,png}", o.Glob)
	case o.Labels != noLabels && o.Labels != labelsOfFolders && o.Labels != labelsListed:
		return invalid("labels is %q; known are: %s, %s, %s", o.Labels, noLabels, labelsOfFolders, labelsListed)
	case o.Labels == labelsListed && o.Manifest == "":
		return invalid("labels: manifest needs a manifest with labels")
	case source.IsRemote(o.Path) && o.Descriptors != nil:
		return invalid("descriptors is for local files, and %s is an address", o.Path)
	case o.Descriptors != nil && *o.Descriptors < 0:
		return invalid("descriptors is %d; 0 keeps none", *o.Descriptors)
	case o.Descriptors != nil && uint64(*o.Descriptors) >= mayOpen():
		return invalid("descriptors is %d, but this process may open %d files; lower it, "+
			"or raise the limit (ulimit -n, LimitNOFILE= in a unit file)",
			*o.Descriptors, mayOpen())
	}
	return nil
}

// schema returns the schema of the files. It returns ErrInvalid if a file is too large for a
// sample.
func (o *settings) schema(root string, l *listing) (shm.Schema, error) {
	fields := []shm.Field{{Name: "data", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}}
	if o.Labels != noLabels {
		fields = append(fields, shm.Field{Name: "label", DType: shm.Int64})
	}
	schema, err := shm.NewSchema(fields, true)
	if err != nil {
		return schema, err
	}
	s := &l.files.survey
	_, bytes, err := schema.Place(shapes(&schema, s.most))
	if err != nil {
		return schema, fmt.Errorf("%w: %s has %d bytes: %w", source.ErrInvalid, root+"/"+s.largest, s.most, err)
	}
	schema.SampleBytes = uint64(bytes)
	return schema, nil
}

// shapes returns the shapes of the fields of a file's sample.
func shapes(schema *shm.Schema, bytes int64) [][]uint64 {
	return [][]uint64{{uint64(bytes)}, nil}[:len(schema.Fields)]
}

// listing is the result of opening a tree, which an index keeps.
type listing struct {
	files files
	rest
}

// rest is the smaller part of a listing.
type rest struct {
	Fingerprint string
	State       string   // with it
	Classes     []string // names of labels by their number; nil: none
	Folders     []folder // folders of the files, sorted; while their times stay the same, they hold the same names
	Notes       []source.Note
}

// folder is a folder, and the time when an entry in it was last created, renamed or removed.
type folder struct {
	Name       string // below the root, which is ""
	ModifiedNs int64
}

// load returns the list of files: from the index if it is valid, else from the tree.
func (o *settings) load(ctx context.Context, place *source.Place, root string) (*listing, error) {
	if o.Index == "" {
		return o.list(ctx, place, root)
	}
	index, err := o.newIndex(place, root)
	if err != nil {
		return nil, err
	}
	l, doubt := index.load(ctx)
	if doubt == nil {
		l.Notes = append(l.Notes, source.Note{Name: "index", Text: "read from " + o.Index})
		return l, nil
	}
	if l, err = o.list(ctx, place, root); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("written to %s: %v", o.Index, doubt)
	if err := index.save(ctx, l); err != nil {
		text = fmt.Sprintf("not written: %v", err)
	}
	l.Notes = append(l.Notes, source.Note{Name: "index", Text: text})
	return l, nil
}

// list inspects all files.
func (o *settings) list(ctx context.Context, place *source.Place, root string) (*listing, error) {
	var l *listing
	var err error
	if o.Manifest != "" {
		l, err = o.listed(ctx, place, root)
	} else {
		l, err = o.found(ctx, place, root)
	}
	if err != nil {
		return nil, err
	}
	l.Fingerprint, l.State = source.FingerprintOf(kind, o.Labels, func(yield func(source.Named) bool) {
		err = l.files.each(ctx, func(_ int, name []byte, r *record) error {
			named := source.Named{Name: string(name), Stamp: r.stamp()}
			if l.files.labelled {
				named.Name += fmt.Sprintf(" = %d", r.label) // a label is part of the data
			}
			yield(named)
			return nil
		})
	})
	if err != nil {
		l.files.close()
		return nil, err
	}
	return l, nil
}

// listFolder is where the file of a long list lies.
func (o *settings) listFolder() string {
	if o.Index != "" {
		return filepath.Dir(o.Index)
	}
	return os.TempDir()
}

// notes returns the notes of the listing, and those about all files.
func (l *listing) notes() []source.Note {
	s := &l.files.survey
	notes := []source.Note{{Name: "bytes", Text: fmt.Sprintf("%d in all, %d in the largest file", s.total, s.most)}}
	if l.files.unmap != nil {
		notes = append(notes, source.Note{Name: "list", Text: fmt.Sprintf("in a file: %d bytes",
			len(l.files.names)+recordBytes*len(l.files.records))})
	}
	if s.empty > 0 {
		notes = append(notes, source.Note{Name: "empty files", Text: fmt.Sprintf("%d, the first is %s", s.empty, s.firstEmpty)})
	}
	if l.Classes != nil {
		// JSON, because a name may have any character
		text, err := json.Marshal(l.Classes)
		if err == nil {
			notes = append(notes, source.Note{Name: source.ClassesNote, Text: string(text)})
		}
	}
	return slices.Concat(notes, l.Notes)
}
