package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
)

// packFlags is the command line of pack.
type packFlags struct {
	sourceFlags
	readers   int
	blockSize size
	fileSize  size
	compress  string
	restart   bool
	resume    bool
	verify    bool
	json      bool
}

// packed is what pack prints.
type packed struct {
	out      string
	set      *block.Dataset
	kept     int
	whole    bool // before pack began
	verified bool
	bytes    uint64 // bytes of the samples written now
	seconds  table.Ratio
}

var packColumns = table.Columns[*packed]{
	table.InJSON("path", "of the dataset", func(p *packed) any { return p.out }),
	table.Listed("samples", "samples", "of the dataset",
		func(p *packed) any { return table.Count(p.set.Info().Samples) }),
	table.Listed("blocks", "blocks", "that hold the samples",
		func(p *packed) any { return table.Count(p.set.Blocks()) }),
	table.Listed("files", "files", "that hold the blocks",
		func(p *packed) any { n, _ := p.set.Files(); return table.Count(n) }),
	table.Listed("file_bytes", "size", "of these files together, indexes included",
		func(p *packed) any { _, n := p.set.Files(); return table.Bytes(n) }),
	table.Listed("largest_bytes", "largest", "bytes of the largest sample, before compression",
		func(p *packed) any { return table.Bytes(p.set.Info().Schema.SampleBytes) }),
	table.Listed("compression", "compression", "none or zstd",
		func(p *packed) any { return string(p.set.Description().Compression) }),
	table.Listed("kept_samples", "kept",
		"samples kept from an earlier, interrupted pack; all of them if OUT was complete",
		func(p *packed) any { return table.Count(p.kept) }),
	table.Listed("bytes", "packed", "bytes of samples packed now, before compression",
		func(p *packed) any { return table.Bytes(p.bytes) }),
	table.Listed("seconds", "seconds", "that packing took, without verifying",
		func(p *packed) any { return p.seconds }),
	table.Listed("bytes_per_second", "speed", "of packing",
		func(p *packed) any { return table.BytesPerSecond(float64(p.bytes) / float64(p.seconds)) }),
	table.Listed("verified", "verified", "every sample was read again and compared with the source",
		func(p *packed) any { return p.verified }),
	table.Listed("source", "source", "fingerprint of the source",
		func(p *packed) any { return p.set.Description().Source.Fingerprint }),
	table.Listed("fingerprint", "fingerprint", "of the dataset as a source",
		func(p *packed) any { return p.set.Info().Fingerprint }),
}

func newPack() *cobra.Command {
	f := &packFlags{}
	c := &cobra.Command{
		Use:   "pack SRC OUT",
		Short: "Copy a source into block files, which read fast",
		Long: paragraphs(`Writes all samples of SRC into the folder OUT as a dataset in block files (docs/spec/block.md), a source of
kind block: several samples a block, a checksum each, an index. A sample is then one read, and a block of
them one large read. pack reads several samples at a time and writes them in order. On a terminal a bar
shows the progress, the speed and the time left.`,
			`OUT appears only when it is complete. Until then everything is in OUT.part. After an interrupt by Ctrl-C, a
full disk or a crash, the same command goes on where it stopped. It verifies and keeps the complete block
files, and the result is the same to the last byte. It goes on only with the same data and options;
--restart starts again. If OUT exists and was made from the same data, there is nothing to do. pack never
overwrites OUT.`,
			explainKinds(),
			packColumns.Explain("OUTPUT"),
			exitStatus(exitNotFound, exitCorrupt, exitMemory, exitExists, exitPermission)),
		Example: `  stocached pack ./pictures pictures.blocks --source 'glob=**/*.jpg,labels=folders'
  stocached pack train.bin train --kind raw --source 'shape=[3,224,224]' -j 16 --verify
  stocached pack 'shards/train-*.tar' train --compress zstd`,
		Args:              arguments(2, 2, "the path of a source and the folder to make"),
		ValidArgsFunction: filesFirst(2),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			return f.run(ctx, args[0], args[1], c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f.add(c)
	f.blockSize, f.fileSize = block.DefaultBlockBytes, block.DefaultFileBytes
	flags := c.Flags()
	readersFlag(c, &f.readers)
	flags.Var(&f.blockSize, "block-size",
		"bytes of a block, a multiple of 4096; a larger sample has its own block\n")
	flags.Var(&f.fileSize, "file-size",
		"bytes of blocks after which a file is full: an interrupted pack loses at most one file\n")
	flags.StringVar(&f.compress, "compress", string(block.None),
		"none, or zstd: each sample by itself, if that makes it smaller; not useful for JPEG")
	flags.BoolVar(&f.resume, "resume", false,
		"go on with an interrupted pack, which must exist (default: if it exists)")
	flags.BoolVar(&f.restart, "restart", false, "delete what an interrupted pack left, and start again")
	flags.BoolVar(&f.verify, "verify", false, "read all samples again, and compare them with the source")
	jsonFlag(c, &f.json)
	exclusive(c, "resume", "restart")
	choices(c, "compress", string(block.None), string(block.Zstd))
	return c
}

func (f *packFlags) run(ctx context.Context, path, out string, stdout, stderr io.Writer) error {
	if err := f.check(path, out); err != nil {
		return err
	}
	began := time.Now()
	switch settings, err := pairs("--decode", f.decode); {
	case err != nil:
		return err
	case settings["store"] != nil && settings["store"] != "decoded":
		return usage("--decode store: block files keep the pictures, or without --decode the files; leave store out")
	}
	src, err := f.open(ctx, path)
	if err != nil {
		return err
	}
	defer src.Close()
	p := &packed{out: out}
	if err := f.pack(ctx, src, p, stderr); err != nil {
		return err
	}
	p.seconds = table.Ratio(time.Since(began).Seconds())
	if p.set, err = block.Open(ctx, out, true); err != nil {
		return err
	}
	defer p.set.Close()
	if f.verify {
		if err := compare(ctx, src, p.set, f.readers, stderr); err != nil {
			return err
		}
		p.verified = true
	}
	if f.json {
		return table.WriteJSON(stdout, packColumns.Object(p))
	}
	if p.whole {
		fmt.Fprintf(stdout, "%s is already complete, and made from the same data\n", out)
	} else {
		fmt.Fprintf(stdout, "packed %s\n", out)
	}
	return packColumns.List(stdout, p)
}

// check checks the command line.
func (f *packFlags) check(path, out string) error {
	if err := checkReaders(f.readers); err != nil {
		return err
	}
	if f.compress != string(block.None) && f.compress != string(block.Zstd) {
		return usage("--compress %q is neither none nor zstd", f.compress)
	}
	if f.blockSize == 0 || f.blockSize%4096 != 0 || f.blockSize > 1<<30 {
		return usage("--block-size %d is not a multiple of 4096 up to 1GiB", f.blockSize)
	}
	if f.fileSize < 4096 || f.fileSize > 1<<50 {
		return usage("--file-size %d is not in 4KiB..1PiB", f.fileSize)
	}
	if strings.HasSuffix(filepath.Clean(out), ".part") {
		return usage("%s: a name that ends in .part is that of an incomplete dataset", out)
	}
	if source.IsRemote(out) {
		return usage("%s is an address, and pack writes folders; pack into a folder, and copy it with a tool of the "+
			"storage, such as aws s3 sync", source.Public(out))
	}
	from, fromErr := filepath.Abs(path)
	to, toErr := filepath.Abs(out)
	if err := errors.Join(fromErr, toErr); err != nil {
		return err
	}
	if st, err := os.Stat(from); err == nil && st.IsDir() {
		if inside, err := filepath.Rel(from, to); err == nil && inside != ".." && !strings.HasPrefix(inside, "../") {
			return usage("%s lies in %s: pack would read what it writes", out, path)
		}
	}
	if st, err := os.Stat(filepath.Dir(to)); err != nil {
		return err
	} else if !st.IsDir() {
		return usage("%s is not a folder", filepath.Dir(to))
	}
	if _, err := os.Stat(to + ".part"); f.resume && errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(to); err != nil {
			return usage("--resume: there is no interrupted pack in %s.part", out)
		}
	}
	return nil
}

// pack writes the missing part of the dataset.
func (f *packFlags) pack(ctx context.Context, src source.Source, p *packed, stderr io.Writer) error {
	info := src.Info()
	bar := newPace(stderr, "pack", uint64(info.Samples))
	defer bar.end()
	w, err := block.Create(ctx, p.out, block.Options{Schema: info.Schema, Compression: block.Compression(f.compress),
		BlockBytes: int(f.blockSize), FileBytes: int64(f.fileSize),
		Source: block.Origin{Kind: info.Kind, Fingerprint: info.Fingerprint}, Notes: info.Notes, Restart: f.restart,
		Kept: func(n int) { bar.set(uint64(n)) }})
	if errors.Is(err, block.ErrWhole) {
		p.whole, p.kept = true, info.Samples
		bar.set(uint64(info.Samples))
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	p.kept = w.Next()
	bar.begin(uint64(p.kept))
	if err := f.fits(src, w.Next(), filepath.Dir(w.Folder()), p.out); err != nil {
		return err
	}
	next := w.Next()
	err = inOrder(ctx, src, next, f.readers, w.Pack, func(packed block.Packed, n int) error {
		bar.bytes.Add(uint64(n))
		next++
		bar.set(uint64(next))
		return w.Append(packed)
	})
	if err == nil {
		err = w.Finish()
	}
	p.bytes = bar.bytes.Load()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = fmt.Errorf("interrupted after %d of %d samples", next, info.Samples)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		err = fmt.Errorf("%w, after %d of %d samples: free some space", err, next, info.Samples)
	}
	if w.Whole() == 0 {
		return err
	}
	return fmt.Errorf("%w; %d samples are complete in %s, and the same command goes on from there", err, w.Whole(),
		w.Folder())
}

// fits returns ENOSPC if the rest of the samples does not fit on the file system. It does not check
// if compression is on, or if the source does not know its sizes.
func (f *packFlags) fits(src source.Source, from int, folder, out string) error {
	info := src.Info()
	if f.compress != string(block.None) {
		return nil
	}
	const indexed = 24 // bytes of a sample in the index
	need := uint64(info.Samples-from) * (info.Schema.SampleBytes + indexed)
	if info.Schema.Variable {
		need = 0
		for i := from; i < info.Samples; i++ {
			n, err := src.Size(i)
			if err != nil {
				return nil // the read will return the error
			}
			need += uint64(n) + indexed
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return nil
	}
	if free := fs.Bavail * uint64(fs.Bsize); need > free {
		return fmt.Errorf("%w: %s needs %v more, and its file system has %v free: free some space, write "+
			"elsewhere, or "+
			"try --compress zstd", unix.ENOSPC, out, table.Bytes(need), table.Bytes(free))
	}
	return nil
}

// compare reads all samples of two sources, and compares them.
func compare(ctx context.Context, src source.Source, set *block.Dataset, readers int, stderr io.Writer) error {
	n := src.Info().Samples
	if set.Info().Samples != n {
		return fmt.Errorf("%w: %s has %d samples, the source %d", source.ErrCorrupt, set.Folder(), set.Info().Samples,
			n)
	}
	bar := newPace(stderr, "verify", uint64(n))
	defer bar.end()
	buffers := sync.Pool{New: func() any { return new([]byte) }}
	err := forEach(ctx, n, readers, bar, func(i int, buffer *[]byte) error {
		second := buffers.Get().(*[]byte)
		defer buffers.Put(second)
		want, err := readInto(ctx, src, i, buffer)
		if err != nil {
			return fmt.Errorf("sample %d: %w", i, err)
		}
		got, err := readInto(ctx, set, i, second)
		if err != nil {
			return err
		}
		if !bytes.Equal((*buffer)[:want], (*second)[:got]) {
			return fmt.Errorf("%w: sample %d differs from the source: %s", source.ErrCorrupt, i,
				set.Where(i))
		}
		bar.bytes.Add(uint64(got))
		return nil
	})
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted while verifying; %s is complete", set.Folder())
	}
	return err
}
