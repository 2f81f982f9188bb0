"""docs/spec/order.md written again in Python, word for word, slow and without the library. The
library must do what the document says."""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, isqrt

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
            self.go_on(lambda: any(count == n for count, n in zip(self.counts, sizes)))
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
