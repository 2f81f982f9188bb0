"""docs/spec/order.md written again in Python, word for word, slow and without the library. The
library must do what the document says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import frexp, isqrt

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64


def mix(x: int) -> int:
    x %= WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def below(x: int, n: int) -> int:
    return x * n >> 64


def chain(seed: int, *words: int) -> int:
    key = mix(seed + GOLDEN)
    for word in words:
        key = mix((key ^ word) + GOLDEN)
    return key


def permutation(n: int, seed: int, epoch: int, use: int, part: int) -> Callable[[int], int]:
    key = chain(seed, epoch, use, part, n)
    if n <= 256:
        table = list(range(n))
        for k in range(n, 1, -1):
            other = below(mix(key + k * GOLDEN), k)
            table[k - 1], table[other] = table[other], table[k - 1]
        return table.__getitem__
    a = isqrt(n - 1) + 1
    b = (n + a - 1) // a
    keys = [mix(key + (k + 1) * GOLDEN) for k in range(10)]

    def at(x: int) -> int:
        while True:
            left, right = divmod(x, b)
            for k in range(0, 10, 2):
                left = (left + below(mix(right ^ keys[k]), a)) % a
                right = (right + below(mix(left ^ keys[k + 1]), b)) % b
            x = left * b + right
            if x < n:
                return x

    return at


def index_at(kind: int, n: int, seed: int, window: int, block: int, epoch: int, p: int) -> int:
    """The index at a position of an order of one dataset. Walks through windows from the first
    one."""
    if kind == 0:
        return p
    if kind == 1:
        return permutation(n, seed, epoch, 0, 0)(p)
    block = 1 if kind == 2 else min(block, n)
    blocks = list(range((n + block - 1) // block))
    if kind == 3:
        blocks = list(map(permutation(len(blocks), seed, epoch, 1, 0), blocks))
    g = 0
    while True:
        samples = [i for k in blocks[g * window : (g + 1) * window] for i in range(k * block, min((k + 1) * block, n))]
        if p < len(samples):
            return samples[permutation(len(samples), seed, epoch, 2, g)(p)]
        p -= len(samples)
        g += 1


def draws(weights: list[float], seed: int, epoch: int) -> Callable[[int], int]:
    n = len(weights)
    e = frexp(max(weights))[1]
    u = [
        int(fraction * 2**53) * 2 ** (own + 62 + 3000 - e) // 2 ** (53 + 3000) for fraction, own in map(frexp, weights)
    ]
    room, m = sum(u), [n * k for k in u]
    shift = room.bit_length() - 64

    def scaled(x: int) -> int:
        return x >> shift if shift >= 0 else x << -shift

    def share(x: int) -> int:
        return min(scaled(x) * WORD // scaled(room), WORD - 1)

    alias, threshold = list(range(n)), [WORD - 1] * n
    lights, heavies = iter([k for k in range(n) if m[k] <= room]), iter([k for k in range(n) if m[k] > room])
    light, heavy = next(lights, None), next(heavies, None)
    left = m[heavy] if heavy is not None else 0
    while heavy is not None:
        if left > room:
            assert light is not None
            threshold[light], alias[light] = share(m[light]), heavy
            left -= room - m[light]
            light = next(lights, None)
        elif (k := next(heavies, None)) is not None:
            threshold[heavy], alias[heavy] = share(left), k
            left = m[k] - (room - left)
            heavy = k
        else:
            assert left == room
            break
    key = chain(seed, epoch, 3, 0, n)

    def at(p: int) -> int:
        bucket = below(mix(key + (2 * p + 1) * GOLDEN), n)
        return bucket if mix(key + (2 * p + 2) * GOLDEN) < threshold[bucket] else alias[bucket]

    return at


class Mix:
    def __init__(self, orders: list[list[int]], ratios: list[int], seed: int, stop: int, length: int) -> None:
        """orders: kind, samples, seed, window, block."""
        self.orders, self.seed, self.stop = orders, seed, stop
        self.weights = list(ratios)
        self.children: dict[int, tuple[int, int]] = {}
        open_nodes = list(range(len(ratios)))
        while len(open_nodes) > 1:
            open_nodes.sort(key=lambda k: (self.weights[k], k))
            lesser, greater, *rest = open_nodes
            self.children[len(self.weights)] = lesser, greater
            open_nodes = [*rest, len(self.weights)]
            self.weights.append(self.weights[lesser] + self.weights[greater])
        self.root = open_nodes[0]
        self.turns: list[tuple[int, int]] = []  # by position: dataset and item
        self.counts = [0] * len(orders)
        self.length = length
        sizes = [order[1] for order in orders]
        if stop == 0:
            self.go_on(lambda: self.counts[d := self.turn(len(self.turns))[0]] == sizes[d])
        elif stop == 1:
            self.go_on(lambda: all(count >= n for count, n in zip(self.counts, sizes)))
        else:
            self.go_on(lambda: len(self.turns) == length)
        self.length = len(self.turns)

    def go_on(self, ended: Callable[[], bool]) -> None:
        while not ended():
            d, item = self.turn(len(self.turns))
            assert item == self.counts[d]
            self.counts[d] += 1
            self.turns.append((d, item))

    def turn(self, q: int) -> tuple[int, int]:
        node = self.root
        while node in self.children:
            lesser, greater = self.children[node]
            s, a = self.weights[node], self.weights[lesser]
            key = chain(self.seed, 4, node, s)

            def first(j: int, a: int = a, s: int = s) -> int:
                return j // a * s + (j % a * s + a - 1) // a

            j = q // s * a + q % s * a // s
            chosen = first(j) + below(mix(key + (j + 1) * GOLDEN), first(j + 1) - first(j))
            node, q = (lesser, j) if q == chosen else (greater, q - j - (q > chosen))
        return node, q

    def at(self, epoch: int, p: int) -> int:
        d, item = self.turns[p]
        kind, n, seed, window, block = self.orders[d]
        if self.stop == 2:
            number, position = divmod((epoch * self.counts[d] + item) % WORD, n)
        else:
            number, position = (epoch + item // n * 2**32) % WORD, item % n
        return sum(order[1] for order in self.orders[:d]) + index_at(
            kind, n, chain(self.seed, 5, d, seed), window, block, number, position
        )


def fnv(name: str) -> int:
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % WORD
    return h


def mix_all(x: np.ndarray) -> np.ndarray:
    """mix() of each word. NumPy keeps the low 64 bits of a product."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.cache
def bucket_hashes() -> np.ndarray:
    return mix_all(np.arange(65536, dtype=np.uint64) + np.uint64(GOLDEN))


@functools.cache
def scores(key: int) -> np.ndarray:
    """Of all buckets, for the node with this key."""
    return mix_all(np.uint64(key) ^ bucket_hashes())


@functools.cache
def by_score(key: int) -> list[int]:
    """The buckets; of equal scores, the lowest bucket first."""
    return np.argsort(scores(key), kind="stable").tolist()


class Nodes:
    """names, ranks, capacities: of the nodes; a name of "" and a capacity of 0 mean none."""

    def __init__(self, names: list[str], ranks: list[int], capacities: list[int], n: int) -> None:
        self.ranks, self.n = ranks, n
        nodes = range(len(ranks))
        if not any(names):
            names = [str(i) for i in nodes]
        self.keys = [mix(fnv(name)) for name in names]
        capped = all(capacities)
        self.most = [min(65536, capacities[i] * 65536 // n) if capped else 65536 for i in nodes]
        self.quota = [0] * len(ranks)
        left, open_nodes = 65536, list(nodes)
        while open_nodes:
            total = sum(ranks[i] for i in open_nodes)
            share = {i: left * ranks[i] // total for i in open_nodes}
            full = [i for i in open_nodes if share[i] >= self.most[i]]
            if not full:
                more = left - sum(share.values())
                for i in sorted(open_nodes, key=lambda i: self.keys[i]):
                    self.quota[i] = share[i] + (more > 0)
                    more -= more > 0
                break
            for i in full:
                self.quota[i] = self.most[i]
                left -= self.most[i]
                open_nodes.remove(i)
        self.owner, owned = [len(ranks)] * 65536, [0] * len(ranks)
        by_key = sorted(nodes, key=lambda i: self.keys[i])
        pairs = np.stack([scores(self.keys[i]) for i in by_key], axis=1).ravel()
        nobody, owner, quota = len(ranks), self.owner, self.quota
        for pair in np.argsort(pairs, kind="stable").tolist():  # equal scores stay in the order of k, then of the key
            k = pair // nobody
            if owner[k] == nobody and owned[i := by_key[pair % nobody]] < quota[i]:
                owner[k] = i
                owned[i] += 1

    def owner_of(self, index: int) -> int:
        return self.owner[mix(index + GOLDEN) % 65536]

    def keep(self, i: int, capacity: int) -> set[int]:
        room = min(65536, capacity * 65536 // self.n) if capacity else 65536
        kept = {k for k in range(65536) if self.owner[k] == i}
        others = [k for k in by_score(self.keys[i]) if k not in kept]
        return kept.union(others[: max(0, room - len(kept))])

    def deal(self, at: Callable[[int], int], length: int, b: int, start: int, pad: bool, g: int) -> list[list[int]]:
        """The samples of each rank in a global batch. at: the index at a position."""
        total, left = sum(self.ranks), length - start
        t = (left + total - 1) // total if pad else left // total
        m = min(b, t - g * b)
        positions = range(start + g * b * total, start + g * b * total + m * total)
        nodes: list[list[int]] = [[] for _ in self.ranks]
        surplus = []
        for p in positions:
            i = self.owner_of(at(p % length))
            if i < len(nodes) and len(nodes[i]) < m * self.ranks[i]:
                nodes[i].append(p)
            else:
                surplus.append(p)
        dealt = []
        for i, mine in enumerate(nodes):
            lack = m * self.ranks[i] - len(mine)
            own = sorted(mine + surplus[:lack])
            surplus = surplus[lack:]
            for r in range(self.ranks[i]):
                dealt.append([at(p % length) for p in own[r :: self.ranks[i]]])
        return dealt

    def digest(self, at: Callable[[int], int], length: int, epoch: int, b: int, start: int, ends: int) -> int:
        probes = [at(k * length // 64) for k in range(64)]
        return chain(self.n, 1, epoch, length, *probes, start, b, ends, len(self.ranks), *self.ranks, *self.owner)
