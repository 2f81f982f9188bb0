package model

// getTries is the number of tries of a copy before it is a miss; 16 in the real code.
const getTries = 2

func init() {
	table[getWord] = func(x *execution) {
		t, i := x.t(), x.op().Sample
		if t.w = x.load(wordOf(i)); stateOf(t.w) != ready {
			x.finish(Miss)
			return
		}
		t.expect, t.pc = x.s.shown[i], getMeta
	}
	table[getMeta] = func(x *execution) {
		x.t().meta, x.t().pc = x.load(metaOf(x.op().Sample)), getFirst
		if x.y.Variable {
			x.t().pc = getSum
		}
	}
	// As verify does; a copy does not need the checksum.
	table[getSum] = func(x *execution) {
		x.t().sum, x.t().pc = uint8(x.load(checksumOf(x.op().Sample))), getFirst
	}
	table[getFirst] = func(x *execution) {
		x.copyHalf(0)
		x.t().pc = getSecond
		if x.y.Chains {
			x.t().pc = getNext
		}
		if x.broken(RecheckEarly) {
			x.t().pc = getCheck
		}
	}
	// The slot that has the other half. A chain that ends too early is of another sample, or the segment
	// is corrupt.
	table[getNext] = func(x *execution) {
		t := x.t()
		t.s, t.pc = placeOf(t.w), getSecond
		if x.y.units(t.meta) < 2 {
			return
		}
		if t.s = nextOf(x.load(tableOf(t.s - 1))); t.s == 0 {
			t.pc = getCheck
		}
	}
	table[getSecond] = func(x *execution) {
		x.copyHalf(1)
		x.t().pc = getCheck
		switch {
		case x.broken(NoRecheck), x.broken(RecheckEarly):
			x.hit()
		case x.broken(MetaRecheckFirst):
			x.t().pc = getCheckMeta
		}
	}
	table[getCheck] = func(x *execution) {
		t := x.t()
		if x.load(wordOf(x.op().Sample)) != t.w {
			x.copyAgain()
			return
		}
		t.expect, t.pc = x.s.shown[x.op().Sample], getCheckMeta
		if x.broken(NoMetaRecheck) || x.broken(MetaRecheckFirst) {
			x.hit()
		}
	}
	table[getCheckMeta] = func(x *execution) {
		t := x.t()
		switch {
		case x.load(metaOf(x.op().Sample)) != t.meta:
			x.copyAgain()
		case x.broken(RecheckEarly):
			t.pc = getSecond
		case x.broken(MetaRecheckFirst):
			t.pc = getCheck
		case x.y.refers:
			t.pc = getHand
		default:
			x.hit()
		}
	}
	// What a hit leaves for the policy.
	table[getHand] = func(x *execution) {
		x.t().number, x.t().pc = x.load(handAddr), getReference
	}
	table[getReference] = func(x *execution) {
		t := x.t()
		old := uint8(x.load(referenceOf(placeOf(t.w) - 1)))
		if t.refer = x.y.hits.After(old, uint64(x.op().Sample), uint64(t.number)); t.refer == old {
			x.hit()
			return
		}
		t.pc = getRefer
	}
	table[getRefer] = func(x *execution) {
		x.store(referenceOf(placeOf(x.t().w)-1), value(x.t().refer))
		x.hit()
	}
}

// copyAgain discards a copy and starts again.
func (x *execution) copyAgain() {
	t := x.t()
	if tries := t.tries + 1; tries < getTries {
		*t = thread{pc: getWord, op: t.op, tries: tries, buffer: t.buffer}
		return
	}
	x.finish(Miss)
}

// copyHalf copies half of the sample. The length was loaded once and is bounded, so the copy always
// stays inside the payload.
func (x *execution) copyHalf(half int) {
	t := x.t()
	x.accesses++
	units := int(min(x.y.units(t.meta), maxUnits))
	for k := range units {
		at := cellAddr + addr(2*int(placeOf(t.w)-1)+half*units+k)
		if x.y.Chains && units > 1 {
			at = cellAddr + addr(2*int(placeOf(t.w)-1)+k)
			if half == 1 {
				at = cellAddr + addr(2*int(t.s-1)+k)
			}
		}
		if at < words {
			t.copy[half*maxUnits+k] = uint8(x.s.mem[at])
		}
	}
	x.say("copy half %d of payload[%d], %d units: %v", half, placeOf(t.w)-1, units,
		t.copy[half*maxUnits:half*maxUnits+units])
}

// hit ends a copy that has passed its checks. The copy must be what was published when its word was
// read last.
func (x *execution) hit() {
	t := x.t()
	units := int(min(x.y.units(t.meta), maxUnits))
	for k := range units {
		for half := range 2 {
			if v := t.copy[half*maxUnits+k]; v != t.expect {
				x.fail("a copy of sample %d shows v%d, and v%d was published: torn, or another's bytes",
					x.op().Sample, v, t.expect)
			}
		}
	}
	sum := contentOf(t.meta)
	if x.y.Variable {
		sum = t.sum
	}
	if sum != t.expect {
		x.fail("a copy of sample %d has the checksum of v%d, and v%d was published", x.op().Sample, sum, t.expect)
	}
	x.finish(Hit)
}
