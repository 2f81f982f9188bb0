// Go reads a folder of pictures in shuffled batches, through a cache in shared memory. The source decodes the
// pictures, the loader prefetches batches with several goroutines, and the cache keeps what fits. No cgo is needed.
//
//	go run ./examples/go [-epochs 3] [-size 64] FOLDER
//
// FOLDER has a folder for each class. The program prints, for 96 pictures:
//
//	epoch 1: mean 109.39, 0 of 96 samples from the cache
//	epoch 2: mean 109.39, 96 of 96 samples from the cache
//	epoch 3: mean 109.39, 96 of 96 samples from the cache
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/kinds"
)

const pixels = 3 * 64 * 64 // bytes of a picture

func main() {
	epochs := flag.Uint64("epochs", 3, "how often to read the folder")
	size := flag.Uint64("size", 64, "MiB that the cache may take")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: go run ./examples/go [-epochs 3] [-size 64] FOLDER")
	}
	if err := train(context.Background(), os.Stdout, flag.Arg(0), *epochs, *size<<20); err != nil {
		log.Fatal(err)
	}
}

func train(ctx context.Context, out io.Writer, folder string, epochs, size uint64) error {
	files, err := kinds.Open(ctx, source.Settings{"kind": "dir", "path": folder, "labels": "folders"})
	if err != nil {
		return err
	}
	// A sample has a picture, uint8 of shape (3, 64, 64), and then its label as int64.
	pictures, err := decode.New(files, map[string]any{"resize": []int{64, 64}, "fit": "crop"})
	if err != nil {
		return err
	}
	defer pictures.Close()
	info := pictures.Info()
	// Without a name, the cache ends with this process. With one, other programs can use it too.
	cache, err := client.Create("", client.Options{Samples: info.Samples, Fields: info.Schema.Fields, Size: size,
		Policy: client.PolicyCost})
	if err != nil {
		return err
	}
	defer cache.Close()

	from, err := loader.FromCacheAndSource(cache, pictures)
	if err != nil {
		return err
	}
	batches, err := loader.New(from, loader.Options{BatchSize: 16, Order: order.Order{Kind: order.Shuffled, Seed: 1}})
	if err != nil {
		return err
	}
	last := batches.Stats()
	for epoch := range epochs {
		sum := 0
		for batch, err := range batches.Batches(ctx) {
			if err != nil {
				return err // it names the sample and its file
			}
			for k := range batch.Len() {
				sample := batch.Sample(k)
				sum += learn(sample[:pixels], int64(binary.LittleEndian.Uint64(sample[pixels:])))
			}
			batch.Release() // its memory becomes another batch
		}
		now := batches.Stats()
		samples := now.Samples - last.Samples
		fmt.Fprintf(out, "epoch %d: mean %.2f, %d of %d samples from the cache\n", epoch+1,
			float64(sum)/float64(samples*pixels), now.Hits-last.Hits, samples)
		last = now
	}
	return nil
}

// learn stands for a step of a model. It returns the sum of the pixels.
func learn(pixels []byte, label int64) (sum int) {
	for _, value := range pixels {
		sum += int(value)
	}
	return sum
}
