package report

// Group is what one run measures as a whole: the parts of the program that belong together, what must be reached, and how its results are headed.
type Group struct {
	Name         string // of Result.Group; "clients" is "" there
	Title        string
	Command      string // that makes the results
	Samples      string // what the names of sizes mean
	Requirements []Requirement
}

// Clients and Server are the groups, in the order of the page.
var (
	Clients = Group{"clients", "Clients, without a server", "make bench-peers",
		"Samples: *image* 150,528 bytes x 4,096, *small* 3,072 bytes x 1,000,000, *large* 8 MiB x 64; batches of 256 (large: 8).", Requirements}
	Server = Group{"server", "The server", "make bench-server",
		"Samples: *image* 150,528 bytes, *15 KB* 15,000 bytes, *small* 3,072 bytes. A real `stocached serve` with its default of 4 reads at a time answers " +
			"Go clients; bare reads have 4 goroutines.", ServerRequirements}
)

// group returns the group of a result.
func (r *Result) group() *Group {
	if r.Group == Server.Name {
		return &Server
	}
	return &Clients
}

// InGroup says whether a result is of a group.
func (r *Result) InGroup(g *Group) bool { return r.group().Name == g.Name }
