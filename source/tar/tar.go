package tar

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

const (
	kind             = "tar"
	defaultOpenFiles = 256
	openers          = 8 // shards that are opened at the same time
)

// Kind is this kind for the list in package kinds.
var Kind = source.Kind{Name: kind,
	Doc: "tar shards in the format of webdataset: path, such as train-{000000..000012}.tar or " +
		"train-*.tar; fields", Open: open}

// settings are the keys of this kind.
type settings struct {
	source.Remote `key:",squash"`

	// Path is a shard, or a pattern of shards: braces as webdataset expands them, and * ? [ ] **.
	Path string `key:"path"`
	// Sorted shards are in byte order, each once. Default: in the order of the braces.
	Sorted bool `key:"sorted"`
	// Fields are the fields to read, in this order, such as [jpg, cls]. "jpg;png" is the first of
	// these that a sample has, with the name jpg. Default: the fields of the first
	// sample, sorted.
	Fields []string `key:"fields"`
	// Int64 are fields that hold a decimal number as text, as webdataset writes cls. Each reads as
	// one int64.
	Int64 []string `key:"int64"`
	// Missing says what happens to samples that lack a field: "error" (the default), or "skip",
	// which leaves them out.
	Missing string `key:"missing"`
	// Keys: a sample also has its key, as the last field __key__. Without Fields, no sample has other members than the
	// first one.
	Keys bool `key:"keys"`
	// Index is where indexes are kept: a folder, which is made if missing; for a single shard the
	// name of a file that ends in .stocached-index; "beside": beside each shard, also in a bucket, with
	// .stocached-index after its name; or "none". Default: beside each local shard, or in the user's
	// cache directory if that fails, and for an object.
	Index string `key:"index"`
	// OpenFiles is how many shards stay open between reads, default 256.
	OpenFiles int `key:"open_files"`
}

func (o *settings) check(place *source.Place, shards int) error {
	if err := source.RefuseAddress("index", o.Index, "index: beside keeps the indexes beside the shards in a bucket"); err != nil {
		return err
	}
	_, writable := place.Objects().(source.Writable)
	switch {
	case o.Index == besideShards && place.Objects() != nil && !writable:
		return fmt.Errorf("%w: index is %s, and a web server takes no files; name a local file that ends in %s, "+
			"and put it beside the shard", source.ErrInvalid, o.Index, indexSuffix)
	case o.Fields != nil && len(o.Fields) == 0:
		return fmt.Errorf("%w: fields is empty; leave it out to read the fields of the first sample", source.ErrInvalid)
	case o.Missing != "" && o.Missing != "error" && o.Missing != "skip":
		return fmt.Errorf("%w: missing is %q; it must be error or skip", source.ErrInvalid, o.Missing)
	case o.OpenFiles < 0:
		return fmt.Errorf("%w: open_files is %d", source.ErrInvalid, o.OpenFiles)
	case shards > 1 && filepath.Ext(o.Index) == indexSuffix:
		return fmt.Errorf("%w: index %q is a file, but there are %d shards; name a folder", source.ErrInvalid,
			o.Index, shards)
	}
	return nil
}

// dataset is the source.
type dataset struct {
	info   source.Info
	place  *source.Place
	fields []field
	keys   bool // samples have their keys, after the fields
	shards []*shard
	chosen []selection                             // selection of each shard
	ends   []int                                   // for each shard: the number of its last sample, plus 1
	files  *source.OpenFiles[*shard, *source.File] // the last used ones
	work   sync.Pool                               // holds *work

	mu     sync.RWMutex // locked for reading by each access to an index or a shard: Close waits for them
	closed bool
}

func open(ctx context.Context, s source.Settings) (source.Source, error) {
	var o settings
	if err := s.Decode(&o); err != nil {
		return nil, err
	}
	place, err := o.Place(&o.Path)
	if err != nil {
		return nil, err
	}
	paths, err := shardPaths(ctx, place.Objects(), o.Path, o.Sorted)
	if err == nil {
		err = o.check(place, len(paths))
	}
	if err != nil {
		place.Close()
		return nil, err
	}
	d := &dataset{place: place, keys: o.Keys, shards: make([]*shard, len(paths)), chosen: make([]selection, len(paths))}
	d.work.New = d.newWork
	d.files = source.NewOpenFiles[*shard, *source.File](cmp.Or(o.OpenFiles, defaultOpenFiles))
	if err = d.openShards(ctx, paths, &o); err == nil {
		err = d.describe(&o)
	}
	var blocks *remoteDataset
	if err == nil && place.Objects() != nil {
		blocks, err = newRemote(ctx, d)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	if blocks != nil {
		return blocks, nil
	}
	return d, nil
}

// openShards opens the shards and makes their selections.
func (d *dataset) openShards(ctx context.Context, paths []string, o *settings) error {
	err := source.Each(ctx, len(paths), openers, 1, func(ctx context.Context, k int) (err error) {
		d.shards[k], err = openShard(ctx, d.place, paths[k], o.Index)
		return err
	})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(d.shards, func(s *shard) bool { return s.index.samples > 0 }) {
		return d.noSamples(o)
	}
	if d.fields, err = wantedFields(o, d.firstFields); err != nil {
		return err
	}
	if d.info.Schema, err = schemaOf(d.fields, d.keys); err != nil {
		return err
	}
	return source.Each(ctx, len(paths), openers, 1, func(_ context.Context, k int) error {
		defer d.shards[k].in.forget() // choose has read all of it
		return d.shards[k].in.look(func() (err error) {
			d.chosen[k], err = choose(d.shards[k], d.fields, d.keys, o.Missing == "skip", d.keys && o.Fields == nil)
			return err
		})
	})
}

// firstFields returns the fields of the first sample.
func (d *dataset) firstFields() (names []string) {
	for _, s := range d.shards {
		if s.index.samples > 0 {
			// on an error choose meets the same error and returns it
			_ = s.in.look(func() error { names = s.index.fieldsOf(0); return nil })
			return names
		}
	}
	return nil
}

// describe sets ends and info.
func (d *dataset) describe(o *settings) error {
	var files []source.Named
	samples := 0
	for k, s := range d.shards {
		samples += d.chosen[k].samples
		d.ends = append(d.ends, samples)
		files = append(files, source.Named{Name: filepath.Base(s.path), Stamp: s.index.stamp})
	}
	if samples == 0 {
		return d.noSamples(o)
	}
	schema := d.info.Schema
	if schema.Variable {
		var err error
		if schema.SampleBytes, err = d.largest(&schema); err != nil {
			return err
		}
	}
	read := fmt.Sprintf("skip %t", o.Missing == "skip")
	for _, f := range d.fields {
		read += fmt.Sprintf(" %q %t", f.names, f.number)
	}
	if d.keys {
		read += " keys"
	}
	d.info = source.Info{Kind: kind, Samples: samples, Schema: schema, Notes: d.notes(o), Traffic: d.place.Traffic()}
	d.info.Fingerprint, d.info.State = source.FingerprintOf(kind, read, slices.Values(files))
	return nil
}

// largest returns the bytes of the largest sample. It returns ErrInvalid when that exceeds the
// limit of samples.
func (d *dataset) largest(schema *shm.Schema) (uint64, error) {
	most := 0
	w := d.newWork().(*work)
	for k, s := range d.shards {
		c := &d.chosen[k]
		if c.largest < 0 {
			continue
		}
		err := s.in.look(func() error {
			c.find(s.index, c.largest, w)
			d.shape(s.index, c.largest, w)
			_, total, err := schema.Place(w.dims)
			if err != nil {
				return fmt.Errorf("%w: %s: sample %q: %w; choose fewer fields", source.ErrInvalid, s.path,
					s.index.key(c.largest), err)
			}
			most = max(most, total)
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return uint64(most), nil
}

func (d *dataset) noSamples(o *settings) error {
	first := d.shards[0]
	skipped := 0
	for _, c := range d.chosen {
		skipped += c.skipped
	}
	switch {
	case skipped > 0:
		return fmt.Errorf("%w: all %d samples of %s lack one of the fields %s; the first has %s",
			source.ErrInvalid, skipped, o.Path, fieldNames(d.fields), d.firstFields())
	case first.index.ignored > 0 || first.index.links > 0:
		return fmt.Errorf("%w: no samples in %s: %d members of %s have names without a field (such as 000123.jpg has), "+
			"%d are links",
			source.ErrInvalid, o.Path, first.index.ignored,
			first.path, first.index.links)
	}
	return fmt.Errorf("%w: no samples in %s: %d empty shards", source.ErrInvalid, o.Path, len(d.shards))
}

func (d *dataset) Info() source.Info { return d.info }

// locate returns the number of the shard of sample i, and the sample's number in it.
func (d *dataset) locate(i int) (shard, number int) {
	shard, _ = slices.BinarySearch(d.ends, i+1)
	if shard > 0 {
		i -= d.ends[shard-1]
	}
	return shard, d.chosen[shard].number(i)
}

// Close waits for inflight reads.
func (d *dataset) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.files.Clear()
	for _, s := range d.shards {
		if s != nil {
			s.in.close()
		}
	}
	d.place.Close()
	return nil
}
