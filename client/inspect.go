package client

// Inspection shows what a cache holds, and who uses it. Reads through it count nothing. It lives as long as its Cache.
type Inspection struct{ c *Cache }

// Inspect returns the Inspection of the cache.
func (c *Cache) Inspect() Inspection { return Inspection{c} }

// State returns the current state of a sample. Errors: ErrIndex, ErrClosed.
func (n Inspection) State(i int) (State, error) { return n.c.c.State(i) }

// States writes the states of the samples from first on into dst. Errors: ErrIndex unless all of them are samples;
// ErrClosed.
func (n Inspection) States(first int, dst []State) error { return n.c.c.States(first, dst) }

// Costs writes what the loads of the samples from first on took into dst. A cache with PolicyCost knows the costs of
// all samples that were ever loaded, others those of some. Errors: ErrIndex unless all of them are samples; ErrClosed.
func (n Inspection) Costs(first int, dst []Cost) error { return n.c.c.Costs(first, dst) }

// Clients lists the clients. It includes a past client until another one takes its record. Errors:
// ErrClosed, ErrSystem.
func (n Inspection) Clients() ([]ClientInfo, error) { return n.c.c.Clients() }

// Verify compares the READY samples of first..first+count-1 with their checksums. Errors: ErrIndex, ErrClosed.
func (n Inspection) Verify(first, count int) (Verification, error) { return n.c.c.Verify(first, count) }

// Recover reclaims the claims of dead clients and returns their number. A Set that meets such a
// claim reclaims it by itself. Errors: ErrReadOnly, ErrClosed, ErrSystem.
func (n Inspection) Recover() (int, error) { return n.c.c.Recover() }
