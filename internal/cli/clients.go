package cli

import (
	"fmt"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// client is a record of the client table.
type client struct {
	cache.ClientInfo
	hits, misses, stored uint64 // sums of all clients that have had this record
}

// clientsOf reads the client table.
func clientsOf(seg *shm.Segment, reader *cache.Cache) ([]client, error) {
	infos, err := reader.Clients()
	clients := make([]client, len(infos))
	for k, info := range infos {
		clients[k] = client{info, seg.Count(info.Record, shm.Hits), seg.Count(info.Record, shm.Misses),
			seg.Count(info.Record, shm.Stored)}
	}
	return clients, err
}

var clientColumns = table.Columns[client]{
	table.Shown("owner", "owner", "owner number: record + 1", func(c client) any { return c.Record + 1 }),
	table.Shown("live", "live", "the kernel says that the client lives", func(c client) any { return c.Live }),
	table.Shown("pid", "pid",
		"of the client or of the last one, as its own pid namespace shows it; 0 after a clean close",
		func(c client) any { return c.PID }),
	table.InJSON("other_pid_namespace", "pid belongs to another pid namespace than this command's",
		func(c client) any { return c.PIDNamespace != 0 && c.PIDNamespace != pidNamespace() }),
	table.Shown("kind", "kind", "go, c, python or server", func(c client) any { return kindName(c.Kind) }),
	table.Shown("label", "label", "name of the program", func(c client) any { return c.Label }),
	table.Shown("registered", "registered", "when, in local time (JSON: UTC)",
		func(c client) any { return table.Moment(c.Registered) }),
	table.Shown("registrations", "registrations", "clients that have had this record so far",
		func(c client) any { return table.Count(c.Registrations) }),
	table.Shown("claims", "claims", "samples that it is filling; of a dead client: to be reclaimed",
		func(c client) any { return c.Claims }),
	table.Shown("hits", "hits", "of all clients that have had this record",
		func(c client) any { return table.Count(c.hits) }),
	table.Shown("misses", "misses", "likewise", func(c client) any { return table.Count(c.misses) }),
	table.Shown("stored", "sets", "likewise: samples stored", func(c client) any { return table.Count(c.stored) }),
}

func kindName(kind uint32) any {
	if name, ok := clientKinds[kind]; ok {
		return name
	}
	return fmt.Sprintf("kind %d", kind)
}

// clientChangeColumns follow clientColumns where a command reads again and again.
var clientChangeColumns = table.Columns[interval[client]]{
	table.InJSON("hits_per_second", "in the interval", func(c interval[client]) any {
		return table.PerSecond(c.rate(func(c *client) uint64 { return c.hits }))
	}),
	table.InJSON("misses_per_second", "likewise", func(c interval[client]) any {
		return table.PerSecond(c.rate(func(c *client) uint64 { return c.misses }))
	}),
	table.InJSON("stored_per_second", "likewise: samples stored", func(c interval[client]) any {
		return table.PerSecond(c.rate(func(c *client) uint64 { return c.stored }))
	}),
}

// liveClients are the live clients of a cache, with what they did in the interval.
func (c change) liveClients() []table.Object {
	objects := []table.Object{}
	for _, now := range c.now.clients {
		if !now.Live {
			continue
		}
		one := interval[client]{now: &now, seconds: c.seconds}
		if c.before != nil && int(now.Record) < len(c.before.clients) {
			one.before = &c.before.clients[now.Record]
		}
		objects = append(objects, append(clientColumns.Object(now), clientChangeColumns.Object(one)...))
	}
	return objects
}
