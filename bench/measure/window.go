package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"
)

// The figures of a hard disk.
const (
	diskBytesPerSecond = 150e6
	diskLatency        = 8 * time.Millisecond
)

// windowBlocks is how many blocks a shuffled window has.
const windowBlocks = 16

// WindowGain is the most that reading in blocks can gain over single samples of a disk of these
// figures.
func WindowGain(bytes int) float64 {
	transfer := float64(bytes) / diskBytesPerSecond
	return (diskLatency.Seconds() + transfer) / transfer
}

// Windows measures shuffled reads from a hard disk: block files, in the order of windows of 16
// blocks, with the read-ahead that goes block by block, beside single samples of a tree of files.
// Both sources are read through the same limits, which let a read take as long as such a disk
// would.
func Windows(b *Box, r Records, size string, singles, runs int) (m report.Measurement, err error) {
	ctx := context.Background()
	settings, err := b.Data.block(r)
	if err != nil {
		return m, err
	}
	tree, err := b.Data.tree(r)
	if err != nil {
		return m, err
	}
	onDisk := func(s source.Settings) (source.Source, error) {
		bare, err := kinds.Open(ctx, s)
		if err != nil {
			return nil, err
		}
		return wrap.Rate(bare, wrap.RateOptions{BytesPerSecond: diskBytesPerSecond, Latency: diskLatency})
	}
	files, err := onDisk(tree)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	blocks, err := kinds.Open(ctx, settings)
	if err != nil {
		return m, err
	}
	order, err := windowed(blocks)
	if err = errors.Join(err, blocks.Close()); err != nil {
		return m, err
	}
	var ahead wrap.Ahead
	row := make([]byte, r.Bytes)
	read := func(s source.Source, order []int) error {
		for _, i := range order {
			if _, err := s.Read(ctx, i, row); err != nil {
				return err
			}
		}
		return nil
	}
	m, err = Alternate("server/window", size, runs,
		Subject{Name: "block, windows of 16 blocks", Samples: len(order),
			Setup: func() (err error) {
				disk, err := onDisk(settings)
				if err != nil {
					return err
				}
				ahead, err = wrap.ReadAhead(disk, wrap.ReadAheadOptions{Size: 2 * windowBlocks * 8 << 20, Blocks: true})
				return err
			},
			Run: func() error {
				ahead.Prefetch(order)
				return read(ahead, order)
			},
			Clean: func() error { return ahead.Close() }},
		Subject{Name: "dir, single samples", Samples: singles, Run: func() error {
			return read(files, r.order()[:singles])
		}})
	m.Note = fmt.Sprintf("%d bytes a sample: these figures allow %.3g x", r.Bytes, WindowGain(r.Bytes))
	return m, err
}

// windowed is an order of all samples of a source: its blocks shuffled, and the samples of 16
// blocks at a time.
func windowed(s source.Source) ([]int, error) {
	blocks, ok := s.(source.Blocks)
	if !ok {
		return nil, fmt.Errorf("source %s has no blocks", s.Info().Kind)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var order []int
	for first, all := 0, rng.Perm(blocks.Blocks()); first < len(all); first += windowBlocks {
		var window []int
		for _, b := range all[first:min(first+windowBlocks, len(all))] {
			start, n := blocks.Block(b)
			for i := start; i < start+n; i++ {
				window = append(window, i)
			}
		}
		rng.Shuffle(len(window), func(i, j int) { window[i], window[j] = window[j], window[i] })
		order = append(order, window...)
	}
	return order, nil
}
