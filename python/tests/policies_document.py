"""docs/spec/policies.md written again in Python, word for word, slow and without the library. Go and C
must do what the document says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from order_document import GOLDEN, WORD, below, mix

KEPT = 2**32 - 1
LOOKS = {"cost": 5, "random": 5, "clock": 64, "fifo": 5, "lru": 5, "lfu": 8, "planned": 17}
POOL = 4
UNREAD = WORD - 1


def random(seed: int, n: int) -> int:
    return mix(seed + (n + 1) * GOLDEN)


def fine(n: int) -> int:
    if n < 2:
        return 0
    e = n.bit_length() - 1
    f = (n << 8 >> e) % 256
    return e * 256 + f + ((f * (256 - f) * 87) >> 16)


def logarithm(c: int) -> int:
    return 2560 + (c >> 1) * 64


def distance(x: int, y: int) -> int:
    return min(abs(x - y), 2047)


def follow(mean: int, d: int) -> int:
    return mean - (mean >> 7) + ((d * 32) >> 7)


def tail_of(spread: int) -> int:
    return (spread >> 48) // 2


def spread_of(word: int) -> int:
    last, within, tail = word % 65536, (word >> 32) % 65536, word >> 48
    return 0 if within == 0 or not 2624 <= last <= 10688 or tail > 22400 else word


def far(spread: int) -> int:
    return tail_of(spread) + 2 * ((spread >> 16) % 65536) // 32 + 64


def doubtful(c: int, spread: int) -> bool:
    return c != 0 and c & 1 == 0 and spread != 0 and logarithm(c) > far(spread)


def observe(spread: int, x: int, old: int, c: int, known: bool) -> int:
    last, between, within, tail = ((spread >> 16 * k) % 65536 for k in range(4))
    if last == 0:
        within, tail = 1, (x + 512) * 2
    elif within < 15:
        between = max(between + int((distance(x, last) * 32 - between) / within), 1)
        near = min(max(tail, x * 2), (x + 512) * 2)
        within, tail = within + 1, min(max(near, tail - 512), tail + 512)
    else:
        between = follow(between, distance(x, last))
        if c == 0:
            tail = min(tail + 99, 22400) if x * 2 > tail else tail - 1
    if known:
        d = distance(x, old)
        if c & 1:
            d = min(d + d // 4, 2047)
        if within < 16:
            within = between
        within = max(follow(within, d), 16)
    return x | between << 16 | within << 32 | tail << 48


def trust(spread: int) -> int:
    between, within = (spread >> 16) % 65536, (spread >> 32) % 65536
    if within < 16:
        return 256
    if within >= between:
        return 0
    return 256 - within**2 // ((between**2 + 255) // 256)


def load(c: int, ns: int, spread: int, draw: int) -> tuple[int, int]:
    x = min(max(fine(ns), 2624), 10688)
    old = logarithm(c)
    doubted = doubtful(c, spread)
    known = c != 0 and not doubted
    above = spread != 0 and x > far(spread) + 64
    spread = observe(spread, x, old, c, known)
    tail = tail_of(spread)
    if not above and (not known or old < tail) and (spread >> 32) % 65536 >= 15:
        x = min(x, tail)
    if above and known and old < tail and c & 1:
        return c - 1, spread
    if c == 0 or (doubted and not above) or (above and known and old < tail):
        y, bit = x, 0
    elif c & 1 == 0:
        y, bit = (old + x) // 2, 1
    else:
        y, bit = (3 * old + x) // 4, 1
    level = min(max((y - 2560 + (draw >> 58)) // 64, 1), 127)
    return level * 2 + bit, spread


@dataclass
class Sample:
    index: int
    size: int
    cost: int = 0
    reference: int = 0
    next: Callable[[], int] = lambda: 0  # reads until it is read; UNREAD; 0: unknown


def density(s: Sample, spread: int) -> int:
    cost, tail = logarithm(s.cost), tail_of(spread)
    capped = s.cost & 1 == 0 and 0 < tail < cost
    return (tail if capped else cost) - fine(s.size)


@dataclass
class Cache:
    """A cache in one process."""

    name: str
    slots: int
    seed: int
    sample: Callable[[int], Sample]
    hand: int = 0
    spread: int = 0
    hits: int = 0
    loads: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)
    held: list[Sample] = field(default_factory=list)
    pool: list[list[int]] = field(default_factory=list)  # slot and next, of planned

    def tick(self, n: int) -> int:
        shift = max((self.slots * 5 // 8).bit_length() - 1, 0)
        return (n >> shift) % 256

    def look(self, n: int) -> int:
        if self.name in ("fifo", "clock"):
            return n % self.slots
        return below(random(self.seed, n), self.slots)

    def worth(self, s: Sample, n: int) -> int:
        if self.name == "cost":
            if s.cost == 0:
                return KEPT
            return 1 if doubtful(s.cost, self.spread) else density(s, self.spread) + 65536
        if self.name == "planned":
            next = s.next()
            return KEPT if next == 0 else 0 if next == UNREAD else KEPT - 1 - min(next, KEPT - 2)
        if self.name == "clock":
            return s.reference
        if self.name == "lru":
            age = (self.tick(n) - s.reference) % 256
            return 256 - (0 if age > 250 else age)
        return s.reference + 1 if self.name == "lfu" else 0

    def yields(self, newcomer: Sample, victim: Sample) -> bool:
        if self.name == "planned":
            return 0 < newcomer.next() < victim.next()
        if self.name != "cost":
            return True
        if newcomer.cost == 0 or doubtful(newcomer.cost, self.spread):
            return False
        if doubtful(victim.cost, self.spread):
            return trust(self.spread) > 128
        more = density(newcomer, self.spread) - density(victim, self.spread)
        return more * trust(self.spread) > 82 * 256

    def looked(self, r: int, n: int) -> int:
        if self.name == "clock" and r > 0 and random(0, n) % 8 == 0:
            return r - 1
        if self.name == "lfu" and r > 0 and random(WORD - 1 - self.seed, n) % 32 == 0:
            return r - (r + 3) // 4
        return r

    def hit(self, sample: int, r: int) -> int:
        self.hits += 1
        if self.name == "clock":
            return min(r + 1, 3)
        if self.name == "lru":
            return self.tick(self.hand)
        if self.name == "lfu":
            return r + (r < 255 and below((2**32 * sample + 256 * self.hand + r) * GOLDEN % WORD, r) == 0)
        return r

    def placed(self) -> int:
        return {"lru": self.tick(self.hand), "lfu": 1}.get(self.name, 0)

    def add(self, slot: int) -> None:
        if self.name != "planned" or slot < 0 or self.held[slot].next() == 0:
            return
        self.pool.append([slot, self.held[slot].next()])
        self.pool.sort(key=lambda kept: -kept[1])  # the older of equal ones comes first
        del self.pool[POOL:]

    def search(self, newcomer: Sample) -> int:
        best, least = -1, KEPT
        for k in range(LOOKS[self.name]):
            n = self.hand
            self.hand += 1
            slot = self.pool.pop(0)[0] if k == 0 and self.pool else self.look(n)
            s = self.held[slot]
            if s is newcomer:
                continue
            w = self.worth(s, n)
            if w < least:
                self.add(best)
                best, least = slot, w
            else:
                self.add(slot)
            if w == 0:
                break
            s.reference = self.looked(s.reference, n)
        if best >= 0 and self.yields(newcomer, self.held[best]):
            return best
        self.add(best)
        return -1

    def read(self, index: int, ns: int) -> tuple[int, int, bool]:
        """The slot of the sample and the sample that went, -1: none; and whether it was a hit."""
        s = self.samples.setdefault(index, self.sample(index))
        for slot, other in enumerate(self.held):
            if other is s:
                s.reference = self.hit(index, s.reference)
                return slot, -1, True
        self.loads += 1
        s.cost, self.spread = load(s.cost, ns, self.spread, random(self.seed, self.loads))
        victim = -1
        if len(self.held) < self.slots:
            self.held.append(s)
            slot = len(self.held) - 1
        else:
            slot = self.search(s)
            if slot < 0:
                return -1, -1, False
            victim, self.held[slot] = self.held[slot].index, s
        s.reference = self.placed()
        return slot, victim, False
