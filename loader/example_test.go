package loader_test

import (
	"context"
	"fmt"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// decode stands for slow work: read, decode, resize.
func decode(_ context.Context, i int, dst []byte) ([]byte, error) {
	return fmt.Appendf(dst, "sample %d", i), nil
}

// The first epoch loads and fills the cache, the second one hits.
func Example() {
	c, err := client.Create("", client.Options{Samples: 8, SampleBytes: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	l, err := loader.New(loader.FromCache(c, decode),
		loader.Options{BatchSize: 3, Order: order.Order{Kind: order.Shuffled, Seed: 1}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		for batch, err := range l.Batches(context.Background()) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%q, %d hits\n", batch.Data(), batch.Hits())
			batch.Release() // another batch reuses its memory
		}
	}
	fmt.Printf("hit rate %.2f\n", l.Stats().HitRate())
	// Output:
	// "sample 1sample 0sample 3", 0 hits
	// "sample 6sample 7sample 4", 0 hits
	// "sample 2sample 5", 0 hits
	// "sample 6sample 5sample 1", 3 hits
	// "sample 2sample 7sample 3", 3 hits
	// "sample 0sample 4", 2 hits
	// hit rate 0.50
}

// A job of four ranks ends in the middle of an epoch, and continues with two.
func ExampleLoader_Resume() {
	c, err := client.Create("", client.Options{Samples: 12, SampleBytes: 9, Slots: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	rank := func(rank, ranks uint64) *loader.Loader {
		l, err := loader.New(loader.FromCache(c, func(_ context.Context, i int, dst []byte) ([]byte, error) {
			return fmt.Appendf(dst, "sample %02d", i), nil
		}),
			loader.Options{BatchSize: 2, Rank: rank, Ranks: ranks})
		if err != nil {
			panic(err)
		}
		return l
	}
	var state loader.State
	for r := range uint64(4) {
		l := rank(r, 4)
		for batch, err := range l.Batches(context.Background()) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(r, "of 4:", batch.Indices())
			break // the job ends after its first batch
		}
		state = l.State() // the same on all ranks
	}
	fmt.Println("position", state.Position)
	for r := range uint64(2) {
		l := rank(r, 2)
		if err := l.Resume(state); err != nil {
			fmt.Println(err)
			return
		}
		for batch, err := range l.Batches(context.Background()) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(r, "of 2:", batch.Indices())
			batch.Release()
		}
	}
	// Output:
	// 0 of 4: [0 4]
	// 1 of 4: [1 5]
	// 2 of 4: [2 6]
	// 3 of 4: [3 7]
	// position 8
	// 0 of 2: [8 10]
	// 1 of 2: [9 11]
}
