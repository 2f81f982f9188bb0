package tar

import (
	"container/list"
	"sync"

	"github.com/stocached/stocached/source"
)

// descriptors keeps some shards open: those used last. One that is in use is never closed, so while more readers than limit are under way in different shards, there are
// as many open as they need. Safe for any number of goroutines.
type descriptors struct {
	limit int

	mu   sync.Mutex
	open map[*shard]*descriptor
	idle list.List // of *descriptor without users, the one used last in front
}

type descriptor struct {
	shard *shard
	users int           // under the mutex of descriptors
	place *list.Element // in idle, nil while it has users

	once sync.Once // opening, outside of that mutex: a slow disk stops only those who want this shard
	file *source.File
	err  error
}

// use calls read with the shard's open file. Errors of opening and of read.
func (d *descriptors) use(s *shard, read func(*source.File) error) error {
	one := d.take(s)
	defer d.put(one)
	if one.once.Do(func() { one.file, one.err = s.open() }); one.err != nil {
		return one.err
	}
	return read(one.file)
}

func (d *descriptors) take(s *shard) *descriptor {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.open[s]
	if one == nil {
		one = &descriptor{shard: s}
		d.open[s] = one
	}
	if one.place != nil {
		d.idle.Remove(one.place)
		one.place = nil
	}
	one.users++
	return one
}

func (d *descriptors) put(one *descriptor) {
	d.mu.Lock()
	var unwanted []*descriptor
	if one.users--; one.users == 0 {
		one.place = d.idle.PushFront(one)
		if one.err != nil { // the next one tries again
			unwanted = append(unwanted, d.drop(one))
		}
	}
	for len(d.open) > d.limit && d.idle.Len() > 0 {
		unwanted = append(unwanted, d.drop(d.idle.Back().Value.(*descriptor)))
	}
	d.mu.Unlock()
	for _, u := range unwanted {
		u.close()
	}
}

// drop takes an idle descriptor out, for the caller to close.
func (d *descriptors) drop(one *descriptor) *descriptor {
	d.idle.Remove(one.place)
	one.place = nil
	delete(d.open, one.shard)
	return one
}

func (one *descriptor) close() error {
	if one.file == nil {
		return nil
	}
	return one.file.Close()
}

// close closes all. Nobody may use it any more.
func (d *descriptors) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first error
	for d.idle.Len() > 0 {
		if err := d.drop(d.idle.Front().Value.(*descriptor)).close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
