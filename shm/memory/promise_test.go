package memory

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that for a cgroup's limit only the caches with a client in it count, and for that of the
// machine all.
func TestPromisesOfCgroups(t *testing.T) {
	k := files(t, map[string]string{
		"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
		"proc/1/cgroup": "0::/a/b\n", "proc/2/cgroup": "0::/a/b/c\n", "proc/3/cgroup": "0::/a/bb\n", "proc/4/cgroup": "0::/other\n",
	})
	own := k.ownCgroups()
	for _, c := range []struct {
		clients []int
		depth   int
	}{{[]int{1}, 2}, {[]int{2}, 2}, {[]int{3}, 1}, {[]int{4}, 0}, {[]int{4, 2, 3}, 2}, {nil, -1}, {[]int{5}, -1}} {
		p := Promises{Inode{}: NewPromise(7)}
		for _, pid := range c.clients {
			p.AddClient(pid, []Inode{{}, {5, 5}}, own) // it is a client of another cache too, which is full
		}
		for depth := range 4 {
			if s := p.Sum(Level{2, depth}); (s.Bytes == 7) != (depth <= c.depth) || s.Caches != int(s.Bytes/7) {
				t.Errorf("clients %v: %d bytes of %d caches count at depth %d", c.clients, s.Bytes, s.Caches, depth)
			}
		}
		expect.Equal(t, p.Sum(Level{}).Bytes, 7, "clients %v: bytes that count for the machine", c.clients)
	}
	limits := Limits{{"the machine", 64 << 30, 40 << 30, Level{}}, {"cgroup /a", 16 << 30, 10 << 30, Level{2, 1}}}
	p := Promises{{1, 1}: {5 << 30, depths{-1, -1, 1}}, {1, 2}: {2 << 30, depths{-1, -1, 0}}}
	if s := limits.Tightest(p.Sum); s.Left != 4<<30 {
		t.Errorf("%+v", s)
	}
	p[Inode{1, 3}] = NewPromise(31 << 30)
	if s := limits.Tightest(p.Sum); s.Left != 1<<30 {
		t.Errorf("%+v", s)
	}
}
