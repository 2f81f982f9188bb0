package session

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that the sum stays within the limit whatever connections take, that stalled clients leave
// memory for one that reads, and that waiting connections go on when memory is free.
func TestBudget(t *testing.T) {
	reads, stands, gone := func() bool { return true }, func() bool { return false }, func() bool { return false }
	s := NewBudget(1000, nil)
	if !s.take(0, 5000, stands) || s.take(0, 1, reads) {
		t.Error("what is larger than the limit is taken alone")
	}
	s.give(5000)
	taken := make([]int, 200)
	for round := range 50 {
		for k := range taken {
			if n := 1 + (round+k)%7; s.take(taken[k], n, stands) {
				taken[k] += n
			}
		}
	}
	if used, _ := s.Usage(); used > 750 || used < 500 {
		t.Errorf("clients that stand still have %d of 1000", used)
	}
	if !s.take(0, 200, reads) {
		t.Error("there is nothing left for a client that reads")
	}
	waited := make(chan bool)
	go func() { waited <- s.await(0, 300, stands, gone) }()
	for k := range taken {
		s.give(taken[k])
	}
	if !<-waited {
		t.Error("who waited was sent away")
	}
	expect.Equal(t, s.used, 500, "taken")
	go func() { waited <- s.await(0, 600, reads, gone) }()
	s.Close()
	if <-waited {
		t.Error("taken from what is closed")
	}
	s.give(500)

	var all sync.WaitGroup
	for seed := range uint64(8) {
		all.Go(func() {
			r, own := rand.New(rand.NewPCG(seed, 0)), 0
			for range 20000 {
				if n := 1 + r.IntN(400); s.take(own, n, reads) {
					own += n
				}
				if used, limit := s.Usage(); used > limit {
					t.Errorf("%d of %d are taken", used, limit)
					return
				}
				if own > 0 && r.IntN(2) == 0 {
					n := 1 + r.IntN(own)
					s.give(n)
					own -= n
				}
			}
			s.give(own)
		})
	}
	all.Wait()
	expect.Equal(t, s.used, 0, "bytes lost")
}
