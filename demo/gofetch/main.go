// Gofetch reads every sample of a served cache once, in its own order, and prints the sums. So do
// demo/reader.py in Python and examples/c/fetch.c in C. crc is the XOR of the CRC-32C of each
// sample, which is the same in any order. seconds is the time of the fetches.
//
//	gofetch NAME SEED [BATCH]
package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/stocached/stocached/client"
)

const timeout = time.Minute // of a batch

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gofetch:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) < 2 || len(args) > 3 {
		return errors.New("usage: gofetch NAME SEED [BATCH]")
	}
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	batch := 32
	if len(args) == 3 {
		if batch, err = strconv.Atoi(args[2]); err != nil || batch < 1 {
			return fmt.Errorf("a batch of %s samples", args[2])
		}
	}
	c, err := client.Dial(context.Background(), args[0], client.DialOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	return read(c, seed, batch, out)
}

func read(c *client.Served, seed uint64, batch int, out io.Writer) error {
	var hits, size int
	var crc uint32
	var waited time.Duration
	order := rand.New(rand.NewPCG(seed, 0)).Perm(c.Info().Samples)
	rows := make([]byte, batch*c.Info().SampleBytes)
	for rest := order; len(rest) > 0; {
		indices := rest[:min(batch, len(rest))]
		rest = rest[len(indices):]
		for _, i := range indices {
			if state, err := c.Inspect().State(i); err == nil && state == client.StateReady {
				hits++
			}
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := c.Fetch(ctx, indices, rows, c.Info().SampleBytes)
		cancel()
		waited += time.Since(began)
		if err != nil {
			return err
		}
		for k := range indices {
			sample := rows[k*c.Info().SampleBytes:][:c.Info().SampleBytes]
			size += len(sample)
			crc ^= crc32.Checksum(sample, castagnoli)
		}
	}
	_, err := fmt.Fprintf(out, "samples=%d hits=%d failed=0 bytes=%d crc=%08x seconds=%.3f\n",
		len(order), hits, size, crc, waited.Seconds())
	return err
}
