"""Steps and Compose without torch: one call for several steps, samples, random numbers, layouts."""

from __future__ import annotations

import pickle
import random
import resource
from collections import namedtuple

import numpy as np
import pytest
from helpers import Of, python
from pictures import encoded, picture

from stocached import InvalidError, Loader, image
from stocached._image import passes
from stocached._image.draws import draw_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
USUAL = [
    image.RandomResizedCrop(64),
    image.RandomHorizontalFlip(),
    image.ColorJitter(0.4, 0.4, 0.4, 0.1),
    image.ToDtype("float32", scale=True),
    image.Normalize(MEAN, STD),
    image.RandomErasing(p=0.9, value="random"),
]


@pytest.fixture
def calls(monkeypatch) -> list:
    """The calls of the library."""
    made: list = []
    call = passes.call
    monkeypatch.setattr(passes, "call", lambda *arguments: (made.append(arguments), call(*arguments))[1])
    return made


def one_by_one(steps, pixels, generator):
    for step in steps:
        pixels = step(pixels, generator)
    return pixels


ONE_CALL = {
    "usual": USUAL,
    "resize, crop": [image.Resize(70), image.CenterCrop(50), image.RandomHorizontalFlip(1)],
    "crop, crop": [image.RandomCrop(60), image.CenterCrop(50)],
    "padded crop": [
        image.RandomCrop(80, padding=8, fill=(1, 2, 3)),
        image.RandomHorizontalFlip(1),
        image.ToDtype("float32"),
    ],
    "float16": [
        image.Resize(50),
        image.ToDtype("float32", scale=True),
        image.Normalize(MEAN, STD),
        image.ToDtype("float16"),
    ],
    "erase uint8": [image.CenterCrop(60), image.RandomErasing(p=1, value=(1, 2, 3))],
    "flips": [image.RandomHorizontalFlip(1), image.ColorJitter(hue=0.3), image.RandomHorizontalFlip(1)],
}


@pytest.mark.parametrize("name", ONE_CALL)
def test_usual_orders_are_one_call(calls, name):
    steps, pixels = ONE_CALL[name], picture(120, 90)
    for seed in range(10):
        calls.clear()
        together = image.Compose(steps)(pixels, np.random.default_rng(seed))
        assert len(calls) == 1
        alone = one_by_one(steps, pixels, np.random.default_rng(seed))
        assert together.dtype == alone.dtype
        assert np.array_equal(together, alone)


def any_steps(random: random.Random) -> list:
    """Some steps in an order that makes sense, with floats at the end or not."""
    early = [
        lambda: image.Resize(random.randrange(30, 90)),
        lambda: image.Resize((random.randrange(10, 90), random.randrange(10, 90)), interpolation="bicubic"),
        lambda: image.CenterCrop(random.randrange(10, 120)),
        lambda: image.RandomResizedCrop(random.randrange(10, 90)),
        lambda: image.RandomCrop(
            random.randrange(10, 30), padding=random.randrange(9), pad_if_needed=True, fill=random.randrange(256)
        ),
        lambda: image.RandomHorizontalFlip(),
        lambda: image.ColorJitter(0.5, 0.5, 0.5, 0.2),
        lambda: image.RandomErasing(value=(9, 8, 7)),
    ]
    late = [
        lambda: image.CenterCrop(random.randrange(10, 120)),
        lambda: image.RandomHorizontalFlip(),
        lambda: image.RandomErasing(value="random"),
        lambda: image.RandomErasing(value=0.5),
        lambda: image.Normalize((0.4,), (0.3,)),
        lambda: image.RandomCrop(8, padding=3, pad_if_needed=True, fill=5),
    ]
    steps = [random.choice(early)() for _ in range(random.randrange(6))]
    if random.random() < 0.7:
        steps.append(image.ToDtype("float32", scale=random.random() < 0.7))
        steps += [random.choice(late)() for _ in range(random.randrange(4))]
        if random.random() < 0.5:
            steps.append(image.ToDtype(random.choice(["float16", "bfloat16"])))
            steps += [step() for step in random.sample(late, random.randrange(3)) if step is not late[4]]
    return steps


@pytest.mark.parametrize("seed", range(60))
def test_steps_give_the_same_together_and_alone(seed):
    chosen = random.Random(seed)
    steps, channels = any_steps(chosen), chosen.choice([1, 3, 3])
    pixels = picture(chosen.randrange(20, 150), chosen.randrange(20, 150), seed, channels)
    together = image.Compose(steps)(pixels, np.random.default_rng(seed))
    alone = one_by_one(steps, pixels, np.random.default_rng(seed))
    assert together.dtype == alone.dtype
    assert np.array_equal(together, alone), steps
    planes = image.Compose(steps)(np.ascontiguousarray(pixels.transpose(2, 0, 1)), np.random.default_rng(seed))
    assert np.array_equal(planes.transpose(1, 2, 0), together), "layouts agree"


def test_pixels_stay_as_they_are():
    """A sample of a cache is read-only."""
    pixels = picture(90, 80)
    pixels.flags.writeable = False
    before = pixels.copy()
    made = image.Compose(USUAL)(pixels[:70, 5:80], np.random.default_rng(1))
    assert np.array_equal(pixels, before)
    assert np.array_equal(made, image.Compose(USUAL)(before[:70, 5:80], np.random.default_rng(1)))


Pair = namedtuple("Pair", "label picture")


def test_samples_with_a_picture():
    flip, pixels, other = image.RandomHorizontalFlip(1), picture(20, 10), picture(9, 9)
    turned = pixels[:, ::-1]
    assert np.array_equal(flip(pixels), turned)
    made = flip((pixels, 7, other))
    assert type(made) is tuple
    assert np.array_equal(made[0], turned)
    assert made[1] == 7
    assert made[2] is other, "only the first"
    assert np.array_equal(flip([7, pixels])[1], turned)
    assert np.array_equal(flip(Pair(7, pixels)).picture, turned)
    assert np.array_equal(flip({"label": 7, "image": pixels})["image"], turned)
    for wrong in (7, (1, 2), {"a": {"bytes": b"", "path": ""}}, {"a": np.zeros(3)}, np.zeros((4, 4), np.uint8)):
        with pytest.raises(InvalidError, match="RandomHorizontalFlip: no picture in"):
            flip(wrong)


def test_a_text_for_a_number_is_named_as_it_was_given():
    with pytest.raises(InvalidError, match="brightness='0.5'"):
        image.ColorJitter(brightness="0.5")


def test_resize_to_two_sides_is_part_of_the_decoder():
    data = encoded(picture(300, 200))
    both = image.Compose([image.Decode(), image.Resize((40, 50)), image.CenterCrop(32)])
    assert both.decode.size == (40, 50)
    assert both.decode.fit == "stretch"
    assert np.array_equal(both(data), image.CenterCrop(32)(image.Resize((40, 50))(image.decode(data))))


def test_small_pictures_are_hwc():
    pixels = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert np.array_equal(image.RandomHorizontalFlip(1)(pixels), pixels[:, ::-1])


def test_random_numbers_depend_on_the_generator_alone():
    pixels, step = picture(90, 80), image.Compose(USUAL)
    first = step(pixels, np.random.default_rng(5))
    assert np.array_equal(first, step(pixels, np.random.default_rng(5)))
    assert not np.array_equal(first, step(pixels, np.random.default_rng(6)))
    assert np.array_equal(step(pixels, random.Random(5)), step(pixels, random.Random(5)))
    with pytest.raises(InvalidError, match="generator is a int"):
        step(pixels, 5)


def test_without_a_generator_numpys_seed_counts():
    code = """
        import numpy as np
        from stocached import image
        step, pixels = image.RandomCrop(8), np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)
        def epoch(seed):
            np.random.seed(seed)
            return [step(pixels).tobytes() for _ in range(5)]
        print(epoch(1) == epoch(1), epoch(1) == epoch(2), len(set(epoch(1))) > 1)
    """
    assert python(code).stdout == "True False True\n"


def test_decode_as_a_step():
    data = encoded(picture(300, 200))
    steps = [image.Decode(), image.Resize(64), image.CenterCrop((50, 60)), image.RandomHorizontalFlip()]
    folded = image.Compose(steps)
    assert folded.decode.short_side == 64, "Resize and CenterCrop are a part of Decode"
    expected = one_by_one(steps[1:], image.decode(data), np.random.default_rng(3))
    for source in (data, np.frombuffer(data, np.uint8)):
        assert np.array_equal(folded((source, 7), np.random.default_rng(3))[0], expected)
    for some in (steps[:2], [steps[0], image.Resize(40), image.CenterCrop(50)], [image.Decode(size=90), *steps[1:]]):
        decode, generator = some[0], np.random.default_rng
        assert np.array_equal(image.Compose(some)(data, generator(3)), one_by_one(some[1:], decode(data), generator(3)))
    with pytest.raises(InvalidError, match="it must be the bytes or the path of a file"):
        folded(7)
    decoded = picture(300, 200)
    for sample in (decoded, {"__key__": __file__, "jpg": decoded}, {"__key__": "a", "png": decoded, "txt": __file__}):
        for step in (folded, image.Decode(size=8)) if sample is not decoded else (folded,):
            with pytest.raises(InvalidError, match="is decoded already: leave Decode out, or write Resize"):
                step(sample)
    with pytest.raises(InvalidError, match="must be the first step"):
        image.Compose(steps[::-1])


def test_compose_in_compose():
    inner = image.Compose([image.RandomResizedCrop(32), image.RandomHorizontalFlip()])
    pixels, tail = picture(90, 80), image.ToDtype("float32")
    made = image.Compose([inner, tail])(pixels, np.random.default_rng(1))
    assert np.array_equal(made, image.Compose([*inner.transforms, tail])(pixels, np.random.default_rng(1)))
    with pytest.raises(InvalidError, match="is no step of stocached.image"):
        image.Compose([len])


def test_pickled_steps_are_equal():
    step = image.Compose(USUAL)
    again = pickle.loads(pickle.dumps(step))
    assert repr(again) == repr(step)
    assert again == step
    assert np.array_equal(again(picture(90, 80), random.Random(1)), step(picture(90, 80), random.Random(1)))


@pytest.mark.parametrize(
    ("step", "pixels"),
    [
        (image.Normalize(MEAN, STD), picture(9, 9)),
        (image.Resize(9), np.zeros((20, 20, 3), np.float32)),
        (image.ColorJitter(0.5), np.zeros((20, 20, 3), np.float32)),
        (image.RandomCrop(30), picture(20, 20)),
        (image.CenterCrop(9), np.zeros((20, 20, 4), np.uint8)),
        (image.CenterCrop(9), np.zeros((20, 20, 3), np.int64)),
        (image.CenterCrop(9), np.zeros((20, 0, 3), np.uint8)),
        (image.RandomErasing(p=1, value="random"), picture(20, 20)),
        (image.ToDtype("uint8"), np.zeros((20, 20, 3), np.float32)),
        (image.Compose([image.ToDtype("float32"), image.Normalize((1, 2, 3), (1, 1, 1))]), picture(9, 9, channels=1)),
    ],
    ids=str,
)
def test_pictures_that_a_step_cannot_take(step, pixels):
    with pytest.raises(InvalidError):
        step(pixels, np.random.default_rng(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: image.RandomHorizontalFlip(2),
        lambda: image.RandomErasing(-1),
        lambda: image.RandomErasing(scale=(0.5, 0.1)),
        lambda: image.RandomResizedCrop(32, ratio=(0, 1)),
        lambda: image.RandomResizedCrop(32, scale=(-1, -0.5)),
        lambda: image.RandomResizedCrop(32, scale=0.5),
        lambda: image.Resize(32.0),
        lambda: image.Resize("32"),
        lambda: image.CenterCrop((1, 2, 3)),
        lambda: image.Resize(0),
        lambda: image.Resize((1, 2, 3)),
        lambda: image.Resize(9, interpolation="nearest"),
        lambda: image.Resize(9, antialias=False),
        lambda: image.Resize(9, max_size=9),
        lambda: image.CenterCrop(0),
        lambda: image.RandomCrop(9, padding=(1, 2, 3)),
        lambda: image.RandomCrop(9, padding=1, padding_mode="reflect"),
        lambda: image.ColorJitter(brightness=-1),
        lambda: image.ColorJitter(hue=0.6),
        lambda: image.ColorJitter(contrast=(2, 1)),
        lambda: image.RandomErasing(value="noise"),
        lambda: image.RandomErasing(value=(1, 2)),
        lambda: image.RandomCrop(9, fill=256),
        lambda: image.ToDtype("int32"),
        lambda: image.ToDtype("number"),
        lambda: image.ToDtype({"float32": 1}),
        lambda: image.ColorJitter("a"),
        lambda: image.ColorJitter(brightness=(0.5,)),
        lambda: image.ColorJitter(hue=(0.1, 0.2, 0.3)),
        lambda: image.ColorJitter(saturation=[None, 1]),
        lambda: image.Compose(image.RandomCrop(9)),
        lambda: image.Resize(9, max_size="10"),
        lambda: image.RandomCrop(9, fill=0.5),
        lambda: image.RandomCrop(9, fill=(1, 2)),
        lambda: image.RandomCrop(9, padding=0.5),
        lambda: image.RandomErasing(value=("a", "b", "c")),
        lambda: image.Normalize((1, 2), (1, 1)),
        lambda: image.Normalize((1,), (0,)),
        lambda: image.Normalize((1,), (1, 1, 1e-50)),
        lambda: image.Normalize((1,), 1e50),
        lambda: image.Normalize((float("nan"),), (1,)),
        lambda: image.Normalize("123", (1,)),
    ],
)
def test_mistakes(make):
    with pytest.raises(InvalidError):
        make()


def test_draws_are_in_their_ranges():
    generator = np.random.default_rng(0)
    row = np.arange(9, dtype=np.uint8).reshape(1, 3, 3)
    assert {int(image.RandomCrop(1)(row, generator)[0, 0, 0]) for _ in range(200)} == {0, 3, 6}
    steps, blank = image.ColorJitter(0.4, 0.4, 0.4, 0.1).in_c(), passes.Picture(row)
    shuffled = [tuple(blank.plan(steps, draw_of(generator))[0].adjust) for _ in range(24_000)]
    assert {tuple(sorted(order)) for order in shuffled} == {(1, 2, 3, 4)}
    orders = np.unique(shuffled, axis=0, return_counts=True)[1]
    assert len(orders) == 24
    assert abs(orders - 1000).max() < 5 * 1000**0.5


@pytest.mark.parametrize("worker", ["process", "thread"])
def test_as_augment_of_a_loader(worker):
    """The random numbers depend on (seed, epoch, index), and not on workers."""

    def epochs(workers: int, seed: int = 7) -> list:
        loader = Loader(
            Of(lambda index: (picture(96, 80, index).transpose(2, 0, 1), index), 40),
            8,
            shuffle=True,
            seed=seed,
            num_workers=workers,
            size="8MiB",
            augment=image.Compose(USUAL),
            worker=worker,
        )
        made = [(pixels.copy(), labels.copy()) for _ in range(2) for pixels, labels in loader]
        loader.close()
        return made

    first, second, other = epochs(0), epochs(2), epochs(2, seed=8)
    assert first[0][0].shape == (8, 3, 64, 64)
    assert first[0][0].dtype == np.float32
    assert all(np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(first, second))
    assert not np.array_equal(first[0][0], other[0][0])
    by_label = [dict(zip(labels.tolist(), pixels)) for pixels, labels in first]
    assert not np.array_equal(*(next(part[3] for part in epoch if 3 in part) for epoch in (by_label[:5], by_label[5:])))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_window_of_a_resize_is_a_crop_of_it(interpolation):
    """Also where the edges, which the window does not have, have larger weights."""
    pixels = picture(44, 124)
    for size in ((45, 46), (126, 45), (60, 300), (31, 43)):
        steps = [image.Resize(size, interpolation), image.CenterCrop(30)]
        assert np.array_equal(image.Compose(steps)(pixels), one_by_one(steps, pixels, None))


@pytest.mark.parametrize("kind", [bytes, np.ndarray])
@pytest.mark.parametrize(
    "step",
    [
        image.Resize(60000),
        image.Resize((60000, 60000)),
        image.CenterCrop(60000),
        image.RandomCrop(60000, pad_if_needed=True),
        image.RandomResizedCrop(60000),
    ],
    ids=lambda step: str(step),
)
@pytest.mark.parametrize("between", [[], [image.RandomHorizontalFlip(1)]], ids=["one call", "two calls"])
def test_no_step_makes_a_picture_of_more_than_max_pixels(step, between, kind):
    pixels = picture(60, 40)
    if kind is bytes:
        steps, sample = [image.Decode(), image.RandomHorizontalFlip(0)], encoded(pixels)
    else:
        steps, sample = [], pixels
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidError, match=r"60000: 3600000000 pixels.*changes it$|90000 x 60000; .* most 65500$"):
        image.Compose([*steps, step, *between, image.CenterCrop(24)])(sample)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_max_pixels_of_decode_are_those_of_the_steps_after_it():
    data = encoded(picture(60, 40))
    steps = [image.RandomHorizontalFlip(), image.Resize((80, 120)), image.CenterCrop(24)]
    for most in (80 * 120, 80 * 120 - 1):
        compose = image.Compose([image.Decode(max_pixels=most), *steps])
        if most == 80 * 120:
            assert compose(data).shape == (24, 24, 3)
        else:
            with pytest.raises(InvalidError, match=r"120 x 80: 9600 pixels; max_pixels is 9599"):
                compose(data)


@pytest.mark.parametrize("settings", [dict(size=60000), dict(short_side=60000), dict(size=224, short_side=60000)])
def test_decode_refuses_a_size_beyond_max_pixels(settings):
    with pytest.raises(InvalidError, match="pictures have at least 3600000000 pixels; max_pixels is 178956970"):
        image.Decode(**settings)
    with pytest.raises(InvalidError, match="3600000000"):
        image.Compose([image.Decode(), image.Resize(60000), image.CenterCrop(224)])
    assert image.Decode(100, max_pixels=10_000)(encoded(picture(60, 40))).shape == (100, 100, 3)


def test_an_error_of_a_generator_is_raised():
    class Broken:
        def random(self) -> float:
            raise KeyError("no more numbers")

    with pytest.raises(KeyError, match="no more numbers"):
        image.Compose(USUAL)(picture(60, 40), Broken())
    assert image.CenterCrop(20)(picture(60, 40), Broken()).shape == (20, 20, 3), "it draws nothing"


def test_erased_boxes_without_pixels_erase_nothing():
    for pixels in (picture(60, 40), picture(60, 40).astype(np.float32)):
        made = image.RandomErasing(1, (1e-9, 1e-9), value=9)(pixels, np.random.default_rng(1))
        assert np.array_equal(made, pixels)


FIRST = {
    "box": [image.RandomResizedCrop(64), image.RandomHorizontalFlip()],
    "crop": [image.RandomCrop((60, 50)), image.ColorJitter(0.4), image.ToDtype("float32")],
    "padded crop": [image.RandomCrop(400, pad_if_needed=True, fill=7)],
    "two passes": [image.RandomResizedCrop(90), image.RandomCrop(30, padding=40)],
    "nothing": [image.RandomHorizontalFlip(0)],
}


@pytest.mark.parametrize("steps", FIRST.values(), ids=FIRST)
@pytest.mark.parametrize("settings", [{}, {"layout": "chw"}, {"short_side": 80}, {"fast": True}, {"size": 96}], ids=str)
def test_a_file_is_decoded_for_its_first_step(steps, settings):
    """Pixels, numbers and errors are those of the steps one by one."""
    decode, together = image.Decode(**settings), image.Compose([image.Decode(**settings), *steps])
    files = [encoded(picture(310, 203), orientation=turn) for turn in range(1, 9)]
    files += [encoded(picture(310, 203), format) for format in ("PNG", "WEBP", "BMP")]
    files += [encoded(picture(310, 203, channels=1)[..., 0], mode="L"), encoded(picture(310, 203), mode="CMYK")]
    for seed, data in enumerate(files):
        apart, joined = np.random.default_rng(seed), np.random.default_rng(seed)
        expected = one_by_one(steps, decode(data), apart)
        made = together(data, joined)
        assert made.dtype == expected.dtype
        assert np.array_equal(made, expected)
        assert joined.random() == apart.random(), "as many numbers are drawn"
    for bad in (files[0][:3000], files[0][:200], b"", files[8][:3000]):
        with pytest.raises(image.DecodeError) as of_decode:
            decode(bad)
        with pytest.raises(image.DecodeError) as of_both:
            together(bad, np.random.default_rng(0))
        assert str(of_both.value) == str(of_decode.value)


def test_damage_outside_of_the_box_is_not_looked_at():
    """So the library decodes the box alone."""
    data = encoded(picture(300, 200))
    damaged = data[: len(data) // 2] + data[-2:]
    with pytest.raises(image.DecodeError, match="damaged"):
        image.decode(damaged)

    class Least:
        random = staticmethod(lambda: 0.0)

    made = image.Compose([image.Decode(), image.RandomCrop(40)])(damaged, Least)
    assert np.array_equal(made, image.decode(data)[:40, :40])


@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("format", ["BMP", "PNG"])
def test_a_picture_in_chw_of_few_columns_keeps_its_layout(width, format):
    data, steps = encoded(picture(width, 9), format), [image.RandomHorizontalFlip(1), image.CenterCrop((5, width))]
    want = image.Compose([image.Decode(), *steps])(data).transpose(2, 0, 1)
    for size in (None, (9, width)):
        assert np.array_equal(image.Compose([image.Decode(size, layout="chw"), *steps])(data), want)


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: np.frombuffer(data, np.uint8)])
def test_a_text_beside_the_bytes_of_a_file_is_no_path(kind, tmp_path):
    """As webdataset has samples: with their key."""
    data = encoded(picture(20, 9))
    compose = image.Compose([image.Decode(), image.CenterCrop(5)])
    want = compose(data)
    made = compose({"__key__": "n01/0001", "jpg": kind(data), "cls": 3})
    assert np.array_equal(made.pop("jpg"), want)
    assert made == {"__key__": "n01/0001", "cls": 3}
    key, pixels = compose(("n01/0001", kind(data)))
    assert (key, pixels.tolist()) == ("n01/0001", want.tolist())
    (tmp_path / "a.jpg").write_bytes(data)
    assert np.array_equal(compose((str(tmp_path / "a.jpg"), "cat"))[0], want)
