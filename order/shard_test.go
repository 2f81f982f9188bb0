package order_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
)

func part(t testing.TB, s order.Shard, e *order.Epoch) *order.Part {
	t.Helper()
	p := fatal.Value(s.Of(e))(t)
	return p
}

// whole returns the indices of a part.
func whole(p *order.Part) []int {
	all := make([]int, p.Samples()+3)
	return all[:p.Fill(all, 0)]
}

// Ensure that ranks share an epoch: with uneven ends each sample comes once, with padding as few as
// possible come twice, with dropping each comes at most once. Ranks read its order in step.
func TestRanksShareAnEpoch(t *testing.T) {
	for _, o := range orders() {
		e := epoch(t, o, 0)
		inOrder := make([]int, o.Samples)
		e.Fill(inOrder, 0, 1)
		for _, ranks := range []uint64{0, 1, 2, 3, 8, 100} {
			from := o.Samples / 3
			left := o.Samples - from
			for _, ends := range []order.Ends{order.Uneven, order.Pad, order.Drop} {
				real, reads := uint64(0), map[int]int{}
				for rank := range max(ranks, 1) {
					p := part(t, order.Shard{Rank: rank, Ranks: ranks, From: from, Ends: ends}, e)
					all := whole(p)
					if uint64(len(all)) != p.Samples() {
						t.Fatalf("%+v, %d ranks, ends %d: %d samples of %d", o, ranks, ends, len(all), p.Samples())
					}
					each := max(ranks, 1)
					if want := map[order.Ends]uint64{order.Uneven: p.Real(), order.Pad: (left + each - 1) / each,
						order.Drop: left / each}[ends]; p.Samples() != want {
						t.Fatalf("%+v, %d ranks, ends %d: rank %d has %d samples, want %d", o, ranks, ends, rank, p.Samples(), want)
					}
					for k, i := range all[:p.Real()] {
						if i != inOrder[from+rank+uint64(k)*each] {
							t.Fatalf("%+v, %d ranks: rank %d has %d at %d", o, ranks, rank, i, k)
						}
						reads[i]++
					}
					real += p.Real()
				}
				for i, n := range reads {
					if n != 1 {
						t.Fatalf("%+v, %d ranks, ends %d: sample %d is read %d times", o, ranks, ends, i, n)
					}
				}
				if ends != order.Drop && real != left || ends == order.Drop && left-real >= max(ranks, 1) {
					t.Fatalf("%+v, %d ranks, ends %d: %d of %d samples are read", o, ranks, ends, real, left)
				}
			}
		}
	}
}

func TestShardsThatCannotBe(t *testing.T) {
	e := epoch(t, order.Order{Samples: 5}, 0)
	for _, c := range []struct {
		s    order.Shard
		want string
	}{{order.Shard{Rank: 2, Ranks: 2}, "rank 2 is not in 0..1"}, {order.Shard{From: 6},
		"position 6 of 5"}, {order.Shard{Ends: 3}, "ends 3"}} {
		if _, err := c.s.Of(e); !errors.Is(err, order.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.s, err, c.want)
		}
	}
}
