package cli

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/internal/advise"
	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
)

// looker reads all caches of some directories, for stocached top and the page.
type looker struct {
	mu      sync.Mutex
	watches []*watch // one for each directory
}

// newLooker takes directories as --dir has them; "": that of this user, and caches without a name.
func newLooker(server *asker, dirs ...string) *looker {
	l := &looker{}
	for _, dir := range dirs {
		l.watches = append(l.watches, &watch{dir: &dirFlag{dir: dir},
			with: extras{server: server, tracks: map[[16]byte]*advise.Track{}, clients: true}})
	}
	return l
}

// look is a live.Look.
func (l *looker) look(opened map[string]bool) live.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := live.Frame{At: time.Now(), Directory: l.watches[0].dir.shown(), Caches: []live.Cache{}}
	seen := map[string]bool{} // a cache may lie in two directories that are one
	for _, w := range l.watches {
		w.with.compare = func(uuid string) bool { return opened[uuid] }
		var complaints bytes.Buffer
		changes, err := w.read(&complaints)
		for line := range strings.Lines(complaints.String()) {
			f.Problems = append(f.Problems, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "stocached: "))
		}
		if err != nil && complaints.Len() == 0 {
			f.Problems = append(f.Problems, err.Error())
		}
		for _, c := range changes {
			uuid := fmt.Sprintf("%x", c.now.uuid)
			if seen[uuid] {
				continue
			}
			seen[uuid] = true
			f.Memory.Caches += table.Bytes(c.now.AllocatedBytes)
			f.Caches = append(f.Caches, live.Cache{UUID: uuid, Name: c.now.name, Fields: c.object(),
				Clients: c.liveClients()})
		}
	}
	slices.SortStableFunc(f.Caches, func(a, b live.Cache) int { return strings.Compare(a.Name, b.Name) })
	if l.watches[0].dir.dir == "" {
		f.OnDemand = onDemandServers()
	}
	if room, err := shm.RoomIn(l.watches[0].dir.dir); err == nil {
		f.Memory.Tmpfs, f.Memory.Machine = left(room.Tmpfs), left(room.Memory)
	}
	return f
}

// left is what a limit leaves; nil: there is no limit.
func left(s memory.Space) any {
	return table.If(s.Left != math.MaxUint64, table.Bytes(s.Left))
}
