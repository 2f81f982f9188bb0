package shm

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// To create a 1 GiB cache allocates only its control part. It must take less than 5 ms.
func BenchmarkCreate1GiB(b *testing.B) {
	for _, name := range []string{"", "bench"} {
		o := Options{Name: name, Samples: 7134, SampleBytes: 150528}
		kind := "memfd"
		if name != "" {
			o.Dir, kind = tempDir(b), "named"
		}
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				s := fatal.Value(Create(o))(b)
				b.StopTimer()
				s.Close()
				if name != "" {
					Unlink(s.Path())
				}
				b.StartTimer()
			}
		})
	}
}

// Attach to a segment of 100 million samples. It must take less than 10 ms.
func BenchmarkAttach100M(b *testing.B) {
	path := sparse(b, tempDir(b), Options{Name: "large", Samples: 100_000_000, SampleBytes: 3072})
	for b.Loop() {
		s := fatal.Value(Open(path, OpenOptions{}))(b)
		s.Close()
	}
}

// Ensure that an attach reads only the header, so that its time does not depend on the size.
func TestAttachTouchesOnlyTheHeader(t *testing.T) {
	path := sparse(t, tempDir(t), Options{Name: "large", Samples: 100_000_000, SampleBytes: 3072})
	s := fatal.Value(Open(path, OpenOptions{}))(t)
	defer s.Close()
	if n, err := s.AllocatedBytes(); err != nil || n != HeaderBytes {
		t.Errorf("%d bytes allocated, the header has %d: %v", n, HeaderBytes, err)
	}
}

// A draw from a grant, and a draw that checks the memory.
func BenchmarkDraw(b *testing.B) {
	s := create(b, Options{Samples: 1, SampleBytes: 1})
	a := s.NewAllowance(0)
	b.Run("small", func(b *testing.B) {
		for b.Loop() {
			n := fatal.Value(a.Draw(1))(b)
			a.Settle(n)
		}
	})
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			s.Grant(a.Group()).Store(0)
			n := fatal.Value(a.Draw(1))(b)
			a.Settle(n)
		}
	})
}

func BenchmarkProbeLocks(b *testing.B) {
	s := create(b, Options{Samples: 1, SampleBytes: 1})
	for r := range uint32(64) {
		if ok, err := locks(b, s).TryLock(r); !ok {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		fatal.Value(s.ProbeLocks())(b)
	}
}
