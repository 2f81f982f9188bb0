package report

// Group is what one run measures as a whole: parts of the program, the requirements, and the title
// of the results.
type Group struct {
	Name         string // of Result.Group; "clients" is "" there
	Title        string
	Command      string // that makes the results
	Samples      string // what the names of sizes mean
	Requirements []Requirement
}

// The groups.
var (
	Clients = Group{"clients", "Clients, without a server", "make bench-peers",
		"Samples: *image* 150,528 bytes x 4,096, *small* 3,072 bytes x 1,000,000, *large* 8 MiB x 64; batches of " +
			"256 (large: 8).", Requirements}
	Server = Group{"server", "The server", "make bench-server",
		"Samples: *image* 150,528 bytes, *15 KB* 15,000 bytes, *small* 3,072 bytes. A real `stocached serve` with " +
			"its default of 4 reads at a time answers " +
			"Go clients; bare reads have 4 goroutines.", ServerRequirements}
	Order = Group{"order", "The order of an epoch", "make bench-order", "Samples: how many the dataset has.",
		OrderRequirements}
	Loader = Group{"loader", "The loader", "make bench-loader",
		"Samples: *image* 196,608 bytes x 1,500 in batches of 64, *small* 3,072 bytes x 200,000 in batches of 256.",
		LoaderRequirements}
	DataLoader = Group{"dataloader", "The loader in Python", "make bench-dataloader",
		"Samples: 196,608 bytes (3 x 256 x 256) in batches of 64, unless a row says something else.",
		DataLoaderRequirements}
	Others = Group{"others", "Loaders of other projects", "make bench-others",
		"Samples: 1,500 of 196,608 bytes in batches of 64.", OthersRequirements}
)

// Groups has all groups, in the order of the page.
var Groups = []*Group{&Clients, &Server, &Order, &Loader, &DataLoader, &Others}

// group returns the group of a result.
func (r *Result) group() *Group {
	for _, g := range Groups {
		if g.Name == r.Group {
			return g
		}
	}
	return &Clients
}

// InGroup says whether a result belongs to a group.
func (r *Result) InGroup(g *Group) bool { return r.group().Name == g.Name }
