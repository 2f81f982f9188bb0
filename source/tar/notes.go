package tar

import (
	"fmt"

	"github.com/stocached/stocached/source"
)

// notes tell an operator what the shards hold beside samples, and which indexes were kept or made.
func (d *dataset) notes(o *settings) []source.Note {
	var notes []source.Note
	note := func(name string, n int, example, text string) {
		if n > 0 {
			notes = append(notes, source.Note{Name: name, Text: fmt.Sprintf(text, n) + example})
		}
	}
	var made, kept, taken, put, doubtful, unkept, empty, skipped, unused, ignored, links, trailing int
	var doubt, cause, tail string
	for k, s := range d.shards {
		x, c := s.index, &d.chosen[k]
		skipped, unused, ignored, links = skipped+c.skipped, unused+c.unused, ignored+int(x.ignored), links+int(x.links)
		empty += one(x.samples == 0)
		made += one(s.made)
		taken += one(s.taken)
		put += one(s.put)
		kept += one(!s.made && !s.taken)
		if s.doubt != nil {
			if doubtful++; doubt == "" {
				doubt = ": " + s.doubt.Error()
			}
		}
		if s.unkept != nil {
			if unkept++; cause == "" {
				cause = ": " + s.unkept.Error()
			}
		}
		if x.trailing > 0 {
			if trailing++; tail == "" {
				tail = fmt.Sprintf(": %d bytes in %s; archives are joined by tar --concatenate, not by cat", x.trailing, s.path)
			}
		}
	}
	note("shards", len(d.shards), "", "%d")
	note("empty shards", empty, "", "%d")
	note("samples skipped", skipped, "", "%d, which lack a field")
	note("members left out", unused, "", "%d, in fields that are not read")
	note("members ignored", ignored, "", "%d, whose names belong to no sample")
	note("links ignored", links, "",
		"%d, which hold no data; shards without them are made by tar --dereference --hard-dereference")
	note("data after the end", trailing, tail, "in %d shards, ignored")
	note("indexes kept", kept, "", "%d, used as they were")
	note("indexes taken", taken, "", "%d, from beside the shards")
	note("indexes made", made, "", "%d")
	note("indexes written", put, "", "%d, beside the shards")
	note("indexes made again", doubtful, doubt, "%d, because the kept ones could not be used")
	note("indexes not kept", unkept, cause, "%d, so they will be made again next time")
	unnoticed := d.place.Notes() // no index is kept of such a shard
	if objects := d.place.Objects(); objects != nil && made > 0 && put == 0 && o.Index != noIndex && len(unnoticed) == 0 {
		how := "put an index beside each (docs/guides/remote.md)"
		if _, writable := objects.(source.Writable); writable {
			how = fmt.Sprintf("stocached source info %s --source index=beside", shellQuote(o.Path))
		}
		notes = append(notes, source.Note{Name: "shards read", Advice: true, Text: fmt.Sprintf(
			"%d, to find their samples, as each other machine reads them, too; write indexes beside them once: %s", made, how)})
	}
	return append(notes, unnoticed...)
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
