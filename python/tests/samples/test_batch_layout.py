"""Samples are taken apart and written into rows: the fast way for flat samples gives the same as
the slow way."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from stocached import SchemaError
from stocached._random.sample_seeds import sample_seed
from stocached._samples.batch_layout import Layout, closed_up
from stocached._samples.tree import Tree, UnfitError

Point = collections.namedtuple("Point", "x y")
IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)

SAMPLES: list[tuple[Any, list[Any]]] = [  # the sample that the layout is learned from, and others of the dataset
    (
        (IMAGE, 3),
        [(IMAGE + 1, 4), (IMAGE, -1), [IMAGE, 3], (IMAGE,), (IMAGE, 3, 4), (IMAGE, (3,)), (IMAGE, None), IMAGE, None],
    ),
    ([1.5, True, "a"], [[2.5, False, "b"], (1.5, True, "a"), [1.5, True, ["a"]], [1.5, True]]),
    (
        {"a": IMAGE, "b": 1},
        [
            {"b": 2, "a": IMAGE},
            {"a": IMAGE},
            {"a": IMAGE, "c": 1},
            {"a": IMAGE, "b": 1, "c": 2},
            {"a": {"b": 1}, "b": 1},
        ],
    ),
    (Point(1, 2), [Point(3, 4), (3, 4)]),
    ({"a": (1, 2), "b": [IMAGE]}, [{"a": (3, 4), "b": [IMAGE]}, {"a": (3,), "b": [IMAGE]}]),
    ((1, None), [(2, None), (2, 3)]),
    (IMAGE, [IMAGE + 1, [IMAGE], None]),
    ((), [(), (1,)]),
]


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize(("first", "others"), SAMPLES)
def test_flat_samples_are_taken_apart_like_others(first: Any, others: list[Any], objects: bool):
    tree = Tree(first, objects=objects)
    for sample in (first, *others):
        quick = tree._take_flat(sample)
        leaves: list[Any] = []
        try:
            tree._walk(tree._root, sample, leaves)
        except UnfitError:
            assert quick is None
            continue
        if quick is not None:
            assert len(quick) == len(leaves)
            assert all(a is b for a, b in zip(quick, leaves))


def test_rows_hold_what_samples_hold():
    layout = Layout.of((IMAGE, 3, 0.5, True), 4)
    arrays = layout.arrays(np.zeros(layout.bytes, np.uint8), 4)
    for row, sample in enumerate(
        [
            (IMAGE, 2**63 - 1, 1e-300, False),
            (IMAGE.T.copy().T, -(2**63), float("inf"), True),
            (IMAGE[::-1], 0, -0.0, False),
        ]
    ):
        assert layout.write(arrays, row, sample) == []
        for array, value in zip(arrays, sample):
            np.testing.assert_array_equal(array[row], value)


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ((IMAGE, 2**63), "64 bits"),
        ((IMAGE, -(2**63) - 1), "64 bits"),
        ((IMAGE, 3.0), "is float, not int"),
        ((IMAGE, True), "is bool, not int"),
        ((IMAGE.astype(np.int16), 3), "int16"),
        ((IMAGE[:2], 3), "has shape"),
    ],
)
def test_rows_refuse_what_is_not_like_the_first(sample: Any, what: str):
    layout = Layout.of((IMAGE, 3), 4)
    arrays = layout.arrays(np.zeros(layout.bytes, np.uint8), 4)
    with pytest.raises(SchemaError, match=what):
        layout.write(arrays, 0, sample)


def test_large_samples_with_and_without_gaps_are_copied_whole():
    large = np.arange(64 * 1024, dtype=np.uint32).reshape(256, 256)
    layout = Layout.of(large, 3)
    (rows,) = layout.arrays(np.zeros(layout.bytes, np.uint8), 3)
    for sample in (large + 1, (large + 2).T, np.repeat(large, 2, axis=1)[:, ::2]):
        layout.write([rows], 1, sample)
        np.testing.assert_array_equal(rows[1], sample)
        assert not rows[0].any()
        assert not rows[2].any()


def test_seeds_of_samples_are_those_of_the_document():
    def mix(x: int) -> int:  # splitmix64, as in docs/spec/order.md
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
        return x ^ x >> 31

    for seed, epoch, index in [(0, 0, 0), (7, 3, 12345), (2**64 - 1, 2**40, 2**50)]:
        key = mix((seed + 0x9E3779B97F4A7C15) % 2**64)
        for word in (epoch, index):
            key = mix(((key ^ word) + 0x9E3779B97F4A7C15) % 2**64)
        assert sample_seed(seed, epoch, index) == key


@pytest.mark.parametrize("rows", [[4, 5, 6], [1, 2, 6]], ids=["side by side", "apart"])
@pytest.mark.parametrize(
    "sample",
    [
        IMAGE,
        (IMAGE, 3),
        {"a": IMAGE, "b": (True, 2.5)},
        np.float32(3),
        (np.arange(3, dtype=">i2"), 7),
        np.zeros((0, 3)),
        5,
        {"a": 3, "text": "a"},
    ],
    ids=["array", "pair", "dict", "scalar", "big-endian", "empty", "number", "text"],
)
def test_several_at_once_lie_as_each_alone(sample, rows):
    layout = Layout.of(sample, 8)

    def other(value: Any, by: int) -> Any:
        if isinstance(value, dict):
            return {key: other(item, by) for key, item in value.items()}
        if isinstance(value, tuple):
            return tuple(other(item, by) for item in value)
        if isinstance(value, str):
            return value + str(by)
        return (
            not value
            if value is True
            else type(value)(value + by)
            if isinstance(value, np.generic)
            else (value + by).astype(value.dtype)
            if isinstance(value, np.ndarray)
            else value + by
        )

    samples = [other(sample, by) for by in (1, 2, 3)]
    together, alone = (
        layout.arrays(np.zeros(layout.bytes, np.uint8), 8),
        layout.arrays(np.zeros(layout.bytes, np.uint8), 8),
    )
    objects = [layout.write(alone, row, one) for row, one in zip(rows, samples)]
    done = layout.write_many(together, rows, samples)
    assert (done is None) == isinstance(sample, np.generic)
    if done:
        assert done == objects
        for one, two in zip(together, alone):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("sample", "others"),
    [
        (IMAGE, [IMAGE[:2]]),
        (IMAGE, [IMAGE[:, :1]]),
        (IMAGE, [IMAGE.astype(np.int16)]),
        (IMAGE, [(IMAGE,)]),
        ((IMAGE, 3), [(IMAGE, 3.5)]),
        ((IMAGE, 3), [(IMAGE, True)]),
        ((IMAGE, 3), [(IMAGE, 2**70)]),
        (np.zeros(70000, np.uint8), [np.zeros(70000, np.uint8)]),
    ],
)
def test_what_cannot_be_done_at_once_is_not(sample, others):
    layout = Layout.of(sample, 8)
    assert not layout.write_many(layout.arrays(np.zeros(layout.bytes, np.uint8), 8), [0, 1], [sample, *others])
    assert not layout.write_many(layout.arrays(np.zeros(layout.bytes, np.uint8), 8), [0, 1], [*others, *others])


def test_rows_close_up_over_gaps():
    """In place: what is left of each array is a part of its memory."""
    for seed in range(200):
        generator = np.random.default_rng(seed)
        rows = int(generator.integers(1, 12))
        gaps = sorted(generator.choice(rows, int(generator.integers(1, rows + 1)), replace=False).tolist())
        arrays = [generator.integers(0, 99, (rows, *shape)) for shape in ((), (3,), (2, 0))]
        wanted = [np.delete(array, gaps, axis=0) for array in arrays]
        for array, left, want in zip(arrays, closed_up(arrays, gaps), wanted):
            np.testing.assert_array_equal(left, want)
            assert left.base is array
