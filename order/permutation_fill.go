package order

// fill writes the indices at positions first, first + step, ... to dst, four at a time, and returns
// their number. It stops when fewer than four positions are left.
func (p *permutation) fill(dst []int, first, step uint64) (done int) {
	for ; done+4 <= len(dst); done += 4 {
		from := first + uint64(done)*step
		x := [4]uint64{from, from + step, from + 2*step, from + 3*step}
		if x[3] >= p.n {
			break
		}
		p.atFour(&x)
		for k, index := range x {
			dst[done+k] = int(index)
		}
	}
	return done
}

// atFour replaces four positions by their indices, like at. The rounds of one position wait for
// each other, but the processor runs those of four positions in parallel.
func (p *permutation) atFour(x *[4]uint64) {
	if p.n < smallest {
		for k := range x {
			x[k] = p.at(x[k])
		}
		return
	}
	a, b := p.a, p.b
	l0, r0 := p.split(x[0])
	l1, r1 := p.split(x[1])
	l2, r2 := p.split(x[2])
	l3, r3 := p.split(x[3])
	for k := 0; k < rounds; k += 2 {
		key := p.keys[k]
		l0 = plus(l0, below(mix(r0^key), a), a)
		l1 = plus(l1, below(mix(r1^key), a), a)
		l2 = plus(l2, below(mix(r2^key), a), a)
		l3 = plus(l3, below(mix(r3^key), a), a)
		key = p.keys[k+1]
		r0 = plus(r0, below(mix(l0^key), b), b)
		r1 = plus(r1, below(mix(l1^key), b), b)
		r2 = plus(r2, below(mix(l2^key), b), b)
		r3 = plus(r3, below(mix(l3^key), b), b)
	}
	*x = [4]uint64{l0*b + r0, l1*b + r1, l2*b + r2, l3*b + r3}
	for k := range x {
		if x[k] >= p.n { // one in sqrt(n) needs more rounds
			x[k] = p.at(x[k])
		}
	}
}

// plus returns (x + y) mod n for x and y below n.
func plus(x, y, n uint64) uint64 {
	x += y
	if x >= n {
		x -= n
	}
	return x
}
