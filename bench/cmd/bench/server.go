package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stocached/stocached/bench/measure"
	"github.com/stocached/stocached/bench/report"
)

// serverParts measure a real `stocached serve`.
var serverParts = []part{
	{"fill", "fill throughput from raw, block and dir", false, (*runner).fills},
	{"pictures", "fill throughput from JPEG files, decoded", false, (*runner).pictures},
	{"fetch", "fetch of one miss, of a batch of misses, of all hits", false, (*runner).fetches},
	{"readers", "1, 2 and 4 processes that read, beside redis-server, memcached and plain files", false,
		(*runner).readers},
	{"window", "shuffled windows of blocks from a hard disk", false, (*runner).windows},
	{"idle", "a server that has nothing to do, and starts with 10 million samples", false, (*runner).idle},
	{"crowd", "100 readers and 64 caches", false, (*runner).crowd},
}

// prepareServer compiles the program.
func (r *runner) prepareServer() error {
	if r.stocached != "" {
		return nil
	}
	r.stocached = filepath.Join(r.state, "stocached")
	if err := r.shell("go", "build", "-trimpath", "-o", r.stocached, "./cmd/stocached"); err != nil {
		return fmt.Errorf("stocached: %w", err)
	}
	return nil
}

// inBox runs cases with a box, and removes its data afterwards.
func (r *runner) inBox(cases func(b *measure.Box) error) error {
	data, err := os.MkdirTemp(r.state, "data-")
	if err != nil {
		return err
	}
	r.clean.add(data)
	defer os.RemoveAll(data)
	return cases(&measure.Box{Program: r.stocached, Dir: r.dir, Data: &measure.Data{Dir: data}})
}

// records returns a dataset; in a quick run a part of it.
func (r *runner) records(samples, bytes int) measure.Records {
	if r.quick {
		samples = min(samples, 192)
	}
	return measure.Records{Samples: samples, Bytes: bytes}
}

// Sizes of samples in bytes, and their names.
const (
	image, imageName = 150528, "image"
	kb15, kb15Name   = 15000, "15 KB"
	small, smallName = 3072, "small"
)

func (r *runner) pictures(emit func(report.Measurement)) error {
	if err := r.shell("make", "-s", "-C", "cimage", "all", "../build/image/pixels"); err != nil {
		return fmt.Errorf("stocached-decode: %w", err)
	}
	return r.inBox(func(b *measure.Box) error {
		picture := filepath.Join(r.root, "source/decode/testdata/500x375.jpg")
		m, err := measure.FillPictures(b, picture, filepath.Join(r.root, "build"), r.records(2048, 0).Samples, r.runs)
		if err == nil {
			emit(m)
		}
		return err
	})
}

func (r *runner) fills(emit func(report.Measurement)) error {
	return r.inBox(func(b *measure.Box) error {
		for _, one := range []struct {
			fill    func(b *measure.Box, r measure.Records, size string, runs int) (report.Measurement, error)
			records measure.Records
			size    string
		}{{measure.FillRaw, r.records(2048, image), imageName},
			{measure.FillBlock, r.records(2048, image), imageName},
			{measure.FillTree, r.records(10000, kb15), kb15Name}} {
			m, err := one.fill(b, one.records, one.size, r.runs)
			if err != nil {
				return err
			}
			emit(m)
		}
		return nil
	})
}

func (r *runner) fetches(emit func(report.Measurement)) error {
	return r.inBox(func(b *measure.Box) error {
		batch := 256
		if r.quick {
			batch = 64
		}
		all, err := measure.FetchOne(b, r.records(1000, image), imageName, r.worker(), r.runs)
		if err != nil {
			return err
		}
		emit(all[0])
		emit(all[1])
		images := r.records(2048, image)
		for _, one := range []struct {
			fetch   func(b *measure.Box, r measure.Records, size string, batch, runs int) (report.Measurement, error)
			records measure.Records
			size    string
		}{{measure.FetchBatch, images, imageName}, {measure.FetchSlow, images, imageName},
			{measure.FetchHits, images, imageName}, {measure.FetchHits, r.records(65536, small), smallName}} {
			m, err := one.fetch(b, one.records, one.size, batch, r.runs)
			if err != nil {
				return err
			}
			emit(m)
		}
		return nil
	})
}

func (r *runner) readers(emit func(report.Measurement)) error {
	window := 200 * time.Millisecond
	if r.quick {
		window = 20 * time.Millisecond
	}
	return r.inBox(func(b *measure.Box) error {
		for _, one := range []struct {
			records measure.Records
			size    string
		}{{r.records(1024, image), imageName}, {r.records(32768, small), smallName}} {
			all, err := measure.SharedReaders(b, one.records, one.size, r.worker(), r.runs, window, r.peers)
			if err != nil {
				return err
			}
			for _, m := range all {
				emit(m)
			}
		}
		return nil
	})
}

func (r *runner) windows(emit func(report.Measurement)) error {
	singles := 100
	if r.quick {
		singles = 20
	}
	return r.inBox(func(b *measure.Box) error {
		for _, one := range []struct {
			records measure.Records
			size    string
		}{{r.records(2*16*55, image), imageName}, {r.records(2*16*559, kb15), kb15Name}} {
			m, err := measure.Windows(b, one.records, one.size, singles, r.runs)
			if err != nil {
				return err
			}
			emit(m)
		}
		return nil
	})
}

func (r *runner) idle(emit func(report.Measurement)) error {
	window, samples := 20*time.Second, 10_000_000
	if r.quick {
		window, samples = time.Second, 10_000
	}
	return r.inBox(func(b *measure.Box) error {
		all, err := measure.Idle(b, r.records(512, image), r.worker(), window)
		if err != nil {
			return err
		}
		for _, kind := range []string{"tar", "block"} {
			starts, err := measure.Starts(b, kind, samples, r.runs)
			if err != nil {
				return err
			}
			all = append(all, starts...)
		}
		for _, m := range all {
			emit(m)
		}
		return nil
	})
}

func (r *runner) crowd(emit func(report.Measurement)) error {
	each := 100
	if r.quick {
		each = 10
	}
	return r.inBox(func(b *measure.Box) error {
		all, err := measure.Crowd(b, r.records(1000, kb15), kb15Name, each, r.runs)
		for _, m := range all {
			emit(m)
		}
		return err
	})
}
