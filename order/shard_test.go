package order_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/order"
)

func part(t testing.TB, s order.Shard, e *order.Epoch) *order.Part {
	t.Helper()
	p, err := s.Of(e)
	if err != nil {
		t.Fatal(err)
	}
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

// Ensure that a job that stops anywhere and continues with any other number of ranks, several
// times, reads each sample once.
func TestGoOnWithOtherRanks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		o := orders()[random.IntN(len(orders()))]
		e := epoch(t, o, 7)
		var read []int
		for from := uint64(0); from < o.Samples; {
			ranks := 1 + random.Uint64N(9)
			steps := 1 + random.Uint64N(o.Samples/ranks+1)
			var next uint64
			for rank := range ranks {
				p := part(t, order.Shard{Rank: rank, Ranks: ranks, From: from}, e)
				batch := make([]int, steps)
				read = append(read, batch[:p.Fill(batch, 0)]...)
				next = p.Position(steps)
			}
			from = next
		}
		slices.Sort(read)
		if uint64(len(read)) != o.Samples || slices.Compact(read)[o.Samples-1] != int(o.Samples-1) {
			t.Fatalf("%+v: %d samples read", o, len(read))
		}
	}
}

func TestPaddingBeginsAgain(t *testing.T) {
	e := epoch(t, order.Order{Samples: 5}, 0)
	for from, want := range [][][]int{{{0, 2, 4}, {1, 3, 0}}, 2: {{2, 4}, {3, 0}}, 4: {{4}, {0}}} { // also where it continues
		for rank := range want {
			s := order.Shard{Rank: uint64(rank), Ranks: 2, From: uint64(from), Ends: order.Pad}
			if got := whole(part(t, s, e)); !slices.Equal(got, want[rank]) {
				t.Errorf("rank %d from %d: %v, want %v", rank, from, got, want[rank])
			}
		}
	}
	if got := whole(part(t, order.Shard{Rank: 7, Ranks: 8, Ends: order.Pad}, e)); !slices.Equal(got, []int{2}) { // 7 mod 5
		t.Errorf("more ranks than samples: %v", got)
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
