package block_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source/block"
)

// A program writes a dataset: three samples of an image and a label each. With a fingerprint of its
// source it may be interrupted anywhere and run again: Next says with which sample to continue.
func ExampleWriter() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, folder := context.Background(), filepath.Join(dir, "train")

	schema, err := shm.NewSchema([]shm.Field{
		{Name: "image", DType: shm.Uint8, Dims: []uint64{2, 2}},
		{Name: "label", DType: shm.Uint8},
	}, false)
	if err != nil {
		log.Fatal(err)
	}
	w, err := block.Create(ctx, folder,
		block.Options{Schema: schema, Source: block.Origin{Kind: "example", Fingerprint: "squares-v1"}})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	for i := w.Next(); i < 3; i++ {
		n := byte(i)
		sample, err := schema.Join([]shm.Part{{Data: []byte{n, n, n, n * n}}, {Data: []byte{n}}})
		if err != nil {
			log.Fatal(err)
		}
		if err := w.Write(sample); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		log.Fatal(err)
	}

	d, err := block.Open(ctx, folder, true)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	sample := make([]byte, d.Info().Schema.SampleBytes)
	if _, err := d.Read(ctx, 2, sample); err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Info().Samples, "samples in", d.Blocks(), "block; the last is", sample)
	// Output: 3 samples in 1 block; the last is [2 2 2 4 2]
}
