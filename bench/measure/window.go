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

// Speed and latency of a hard disk.
const (
	diskBytesPerSecond = 150e6
	diskLatency        = 8 * time.Millisecond
)

// windowBlocks is the number of blocks of a shuffled window.
const windowBlocks = 16

// WindowGain is the largest possible gain of reading blocks over single samples on such a disk.
func WindowGain(bytes int) float64 {
	transfer := float64(bytes) / diskBytesPerSecond
	return (diskLatency.Seconds() + transfer) / transfer
}

// Windows measures shuffled reads from a hard disk: block files, in windows of 16 blocks with a
// read-ahead of whole blocks, beside single samples of a tree of files. Both sources have the same
// limits, with which a read takes as long as on such a disk.
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

// windowed returns an order of all samples of a source: its blocks shuffled, and then the samples
// of 16 blocks at a time.
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
