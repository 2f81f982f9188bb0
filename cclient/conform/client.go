//go:build cgo

package conform

import (
	"context"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// client is what both implementations can do. Results and errors are numbers of enum stoc_code in
// the C header; an error replaces a result.
type client interface {
	get(i int, dst []byte) (code, length int)
	view(i int) (int, []byte)
	gather(indices []int, field int, dst []byte, stride, threads int) (int, []bool)
	gatherPacked(indices []int, dst []byte, offsets, lengths []uint64, threads int) (int, []bool)
	lengths(indices []int) (int, []uint64)
	state(i int) int
	states(first, n int) (int, []uint8)
	peek(i int, dst []byte) int
	set(i int, parts [][]byte, flags cache.Flags) int
	setLoaded(i int, parts [][]byte, flags cache.Flags, nanoseconds int64) int
	begin(i, length int, flags cache.Flags) int
	write(offset int, data []byte) int
	publish() int
	abort() int
	clear(milliseconds int) int
	recover() int
	verify(first, n int) (corrupt, checked, bad int)
	stats() (int, cache.Stats)
	close()
}

// goClient is a client through package cache.
type goClient struct {
	c     *cache.Cache
	seg   *shm.Segment
	claim *cache.Claim
}

func openGo(path string, readOnly bool) (*goClient, int, string) {
	seg, err := shm.Open(path, shm.OpenOptions{ReadOnly: readOnly})
	if err != nil {
		return nil, shm.Code(err), err.Error()
	}
	c, err := cache.Attach(seg, cache.Options{})
	if err != nil {
		seg.Close()
		return nil, shm.Code(err), err.Error()
	}
	return &goClient{c: c, seg: seg}, 0, ""
}

// either is the code of an error, or a result.
func either(result int, err error) int {
	if err != nil {
		return shm.Code(err)
	}
	return result
}

func found(hit bool) int {
	if hit {
		return 1
	}
	return 0
}

func (g *goClient) get(i int, dst []byte) (int, int) {
	n, hit, err := g.c.Get(i, dst)
	return either(found(hit), err), n
}

func (g *goClient) view(i int) (int, []byte) {
	v, hit, err := g.c.View(i)
	return either(found(hit), err), v
}

// field returns the name of a field of C; -1 is whole samples.
func (g *goClient) field(number int) string {
	switch fields := g.seg.Header.Fields; {
	case number < 0:
		return ""
	case number < len(fields):
		return fields[number].Name
	}
	return "none"
}

func (g *goClient) gather(indices []int, field int, dst []byte, stride, threads int) (int, []bool) {
	hit := make([]bool, len(indices))
	n, err := g.c.Gather(indices, dst, cache.GatherOptions{Field: g.field(field), Stride: stride, Hit: hit, Threads: threads})
	return either(n, err), hit
}

func (g *goClient) gatherPacked(indices []int, dst []byte, offsets, lengths []uint64, threads int) (int, []bool) {
	hit := make([]bool, len(indices))
	n, err := g.c.GatherPacked(indices, dst, offsets, lengths, hit, threads)
	return either(n, err), hit
}

func (g *goClient) lengths(indices []int) (int, []uint64) {
	lengths := make([]uint64, len(indices))
	n, err := g.c.Lengths(indices, lengths)
	return either(n, err), lengths
}

func (g *goClient) state(i int) int {
	s, err := g.c.State(i)
	return either(int(s), err)
}

func (g *goClient) states(first, n int) (int, []uint8) {
	states := make([]cache.State, max(n, 0))
	err := g.c.States(first, states)
	bytes := make([]uint8, len(states))
	for k, s := range states {
		bytes[k] = uint8(s)
	}
	return either(0, err), bytes
}

func (g *goClient) peek(i int, dst []byte) int {
	_, has, err := g.c.Peek(i, dst)
	return either(found(has), err)
}

func (g *goClient) set(i int, parts [][]byte, flags cache.Flags) int {
	r, err := g.c.SetParts(i, parts, flags)
	return either(int(r), err)
}

func (g *goClient) setLoaded(i int, parts [][]byte, flags cache.Flags, nanoseconds int64) int {
	r, err := g.c.SetLoaded(i, parts, flags, time.Duration(nanoseconds))
	return either(int(r), err)
}

func (g *goClient) begin(i, length int, flags cache.Flags) int {
	k, r, err := g.c.Claim(i, length, flags)
	if k != nil {
		g.claim = k
	}
	return either(int(r), err)
}

func (g *goClient) write(offset int, data []byte) int {
	_, err := g.claim.WriteAt(data, int64(offset))
	return either(0, err)
}

func (g *goClient) publish() int { return either(0, g.claim.Publish()) }
func (g *goClient) abort() int   { return either(0, g.claim.Abort()) }

func (g *goClient) recover() int {
	n, err := g.c.Recover()
	return either(n, err)
}

func (g *goClient) clear(milliseconds int) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(milliseconds)*time.Millisecond)
	defer cancel()
	r, err := g.c.Clear(ctx)
	return either(int(r), err)
}

func (g *goClient) verify(first, n int) (int, int, int) {
	v, err := g.c.Verify(first, n)
	if err != nil {
		return shm.Code(err), 0, -1
	}
	return v.Corrupt, v.Checked, v.Bad
}

func (g *goClient) stats() (int, cache.Stats) {
	s, err := g.c.Stats()
	return either(0, err), s
}

func (g *goClient) close() {
	g.c.Close()
	g.seg.Close()
}
