package shm

import (
	"bytes"
	"sync"
	"testing"
)

// Ensure, with the race detector, that goroutines may use accessors, payload calls and locks of a
// heap segment concurrently if the words order them: a slot is written by the goroutine that
// claims its word, and read by goroutines that see it published.
func TestHeapUnderRace(t *testing.T) {
	s, err := NewHeap(Options{Samples: 64, SampleBytes: 512, Policy: PolicyFirstIndices, ClientRecords: 8})
	if err != nil {
		t.Fatal(err)
	}
	layout := s.WordLayout()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			l, err := s.NewLocks()
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			owner := uint32(0)
			for r := range s.ClientRecords {
				if ok, err := l.TryLock(r); err != nil {
					t.Error(err)
				} else if ok {
					owner = r + 1
					break
				}
			}
			if owner == 0 {
				t.Error("8 clients, 8 records, and none is free")
				return
			}
			for i := range s.Samples {
				claim := layout.Pack(Writing, owner, 0, i+1)
				if s.Word(i).CompareAndSwap(0, uint64(claim)) {
					if _, err := s.WritePayload(bytes.Repeat([]byte{byte(i)}, 512), i*512); err != nil {
						t.Error(err)
					}
					s.Meta(i).Store(uint64(NewMeta(0, 1)))
					s.Word(i).Store(uint64(layout.Pack(Ready, 0, 0, i+1)))
				}
				for j := range s.Samples {
					if Word(s.Word(j).Load()).State() == Ready {
						if b := s.Bytes(j*512, 512); b[0] != byte(j) || b[511] != byte(j) {
							t.Errorf("sample %d begins with %d", j, b[0])
						}
						s.Counter(owner-1, 0, Hits).Add(1)
					}
				}
			}
			if _, err := s.ProbeLocks(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}
