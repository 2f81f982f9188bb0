package shm

import (
	"fmt"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
)

// Ensure that many creations read few caches each: the work grows with their number, and not with its square.
func TestManyCreations(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=1t")
	const n = 200
	others := new(Others)
	var last *look
	before, read := 0, 0 // caches that looks have found: of other programs, and all
	for k := range n {
		create(t, Options{Name: fmt.Sprint("c", k), Dir: dir, Samples: 10, SampleBytes: 10, ClientRecords: 1, Others: others})
		if l := others.looks[dir]; l != last {
			last = l
			read += len(l.promises)
		}
		if k == 0 {
			before = read
		}
	}
	if most := 4*n + 10*before; read > most {
		t.Errorf("%d creations have read %d caches, and may read %d", n, read, most)
	}
}

// Ensure that a program that creates many caches counts those that it has created, and not those that were removed since.
func TestCreationsCount(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=64m")
	o := Options{Dir: dir, Samples: 16, SampleBytes: 1 << 20, ClientRecords: 1, Others: new(Others)}
	for round := range 3 {
		for k := range 3 {
			o.Name = fmt.Sprintf("c%d-%d", round, k)
			s := fatal.Value(Create(o))(t)
			fatal.If(t, s.Close())
		}
		o.Name = "refused"
		_, err := Create(o)
		expect.Error(t, err, ErrMemory, "that other caches (3) have yet to fill")
		for k := range 3 {
			fatal.If(t, Unlink(fmt.Sprintf("%s/c%d-%d", dir, round, k)))
		}
	}
}
