package order_test

import (
	"fmt"

	"github.com/stocached/stocached/order"
)

// Two ranks stop in the middle of an epoch, and three continue.
func ExampleShard() {
	epoch, err := order.Order{Samples: 10, Kind: order.Shuffled, Seed: 1}.Epoch(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	read := func(ranks, from uint64, samples int) (next uint64) {
		for rank := range ranks {
			part, err := order.Shard{Rank: rank, Ranks: ranks, From: from}.Of(epoch)
			if err != nil {
				fmt.Println(err)
				return
			}
			batch := make([]int, samples)
			fmt.Println(rank, "of", ranks, batch[:part.Fill(batch, 0)])
			next = part.Position(uint64(samples))
		}
		return next
	}
	from := read(2, 0, 2)
	fmt.Println("stopped at", from)
	read(3, from, 10)
	// Output:
	// 0 of 2 [1 4]
	// 1 of 2 [9 5]
	// stopped at 4
	// 0 of 3 [8 6]
	// 1 of 3 [3 0]
	// 2 of 3 [7 2]
}

func ExampleWeightedOrder() {
	weights, err := order.NewWeights([]float64{1, 0, 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	epoch, err := order.WeightedOrder{Weights: weights, Seed: 1, Draws: 1000}.Epoch(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	times := make([]int, 3)
	for position := range epoch.Positions() {
		times[epoch.At(position)]++
	}
	fmt.Println(times)
	// Output:
	// [262 0 738]
}
