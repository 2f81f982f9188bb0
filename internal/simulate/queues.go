package simulate

// list is a queue of samples from which any can be removed. Sample s is node s + 1, node 0 is the ends.
type list struct {
	newer, older []uint32
	in           []bool
	samples      int
}

func newList(samples int) list {
	return list{newer: make([]uint32, samples+1), older: make([]uint32, samples+1), in: make([]bool, samples+1)}
}

func (l *list) has(sample uint32) bool { return l.in[sample+1] }

// push adds the newest sample.
func (l *list) push(sample uint32) {
	n, head := sample+1, l.older[0]
	l.older[n], l.newer[n] = head, 0
	l.newer[head], l.older[0] = n, n
	l.in[n] = true
	l.samples++
}

func (l *list) remove(sample uint32) {
	n := sample + 1
	l.newer[l.older[n]], l.older[l.newer[n]] = l.newer[n], l.older[n]
	l.in[n] = false
	l.samples--
}

// oldest returns the oldest sample of a list that has one.
func (l *list) oldest() uint32 { return l.newer[0] - 1 }

func (l *list) pop() uint32 {
	sample := l.oldest()
	l.remove(sample)
	return sample
}

// sieve is SIEVE (Zhang and others, NSDI 2024). A hand goes from the oldest sample to the newest. It
// evicts the first one that had no hit, and removes the mark of those that had one.
type sieve struct {
	counted
	list
	visited []bool
	hand    uint32 // node; 0: begins with the oldest
}

func newSieve(t *Trace, room uint64) cache {
	return &sieve{counted: counted{trace: t, room: room}, list: newList(t.Samples), visited: make([]bool, t.Samples)}
}

func (c *sieve) access(sample uint32, _ int) bool {
	if c.has(sample) {
		c.visited[sample] = true
		return true
	}
	if !c.fits(sample) {
		return false
	}
	for c.full(sample) {
		n := c.hand
		for {
			if n == 0 {
				n = c.newer[0]
			}
			if !c.visited[n-1] {
				break
			}
			c.visited[n-1] = false
			n = c.newer[n]
		}
		c.hand = c.newer[n]
		c.remove(n - 1)
		c.leaves(n - 1)
	}
	c.enters(sample)
	c.visited[sample] = false
	c.push(sample)
	return false
}

// s3FIFO is S3-FIFO (Yang and others, SOSP 2023). New samples go to a small queue, a tenth of the space.
// There is a main queue, and a ghost queue of the samples that left the small one.
type s3FIFO struct {
	counted
	small, main, ghost list
	smallUsed          uint64
	ghostUsed          uint64
	freq               []uint8
}

func newS3FIFO(t *Trace, room uint64) cache {
	return &s3FIFO{counted: counted{trace: t, room: room}, small: newList(t.Samples), main: newList(t.Samples),
		ghost: newList(t.Samples), freq: make([]uint8, t.Samples)}
}

func (c *s3FIFO) has(sample uint32) bool { return c.small.has(sample) || c.main.has(sample) }

func (c *s3FIFO) access(sample uint32, _ int) bool {
	if c.small.has(sample) || c.main.has(sample) {
		c.freq[sample] = min(c.freq[sample]+1, 3)
		return true
	}
	if !c.fits(sample) {
		return false
	}
	known := c.ghost.has(sample)
	for c.full(sample) {
		c.evict()
	}
	c.enters(sample)
	c.freq[sample] = 0
	if known {
		if c.ghost.has(sample) {
			c.ghost.remove(sample)
			c.ghostUsed -= c.trace.size(sample)
		}
		c.main.push(sample)
		return false
	}
	c.small.push(sample)
	c.smallUsed += c.trace.size(sample)
	return false
}

// evict makes one sample go.
func (c *s3FIFO) evict() {
	for c.small.samples > 0 && (c.smallUsed*10 >= c.room || c.main.samples == 0) {
		sample := c.small.pop()
		c.smallUsed -= c.trace.size(sample)
		if c.freq[sample] > 1 {
			c.freq[sample] = 0
			c.main.push(sample)
			continue
		}
		c.leaves(sample)
		c.ghost.push(sample)
		for c.ghostUsed += c.trace.size(sample); c.ghostUsed > c.room-c.room/10; {
			c.ghostUsed -= c.trace.size(c.ghost.pop())
		}
		return
	}
	for {
		sample := c.main.pop()
		if c.freq[sample] == 0 {
			c.leaves(sample)
			return
		}
		c.freq[sample]--
		c.main.push(sample)
	}
}
