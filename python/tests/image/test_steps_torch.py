"""Steps against those of torchvision."""

from __future__ import annotations

import importlib.metadata
import io
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from helpers import Of, python  # noqa: E402
from pictures import Image, difference, encoded, picture  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

import stocached.torch  # noqa: E402
from stocached import InvalidError, image  # noqa: E402
from stocached._image.draws import draw_of  # noqa: E402
from stocached._image.passes import Picture  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = [(1, 1), (17, 31), (64, 64), (500, 375), (7, 300)]


def tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def boxes(step, width: int, height: int, generator, count: int) -> list:
    """x, y, width and height of the boxes that a step draws; None: no box fits."""
    blank = Picture(np.empty((height, width, 3), np.uint8))
    plans = (blank.plan(step.in_c(), draw_of(generator)) for _ in range(count))
    what = "erase" if isinstance(step, image.RandomErasing) else "box"
    names = [f"{what}_{name}" for name in ("x", "y", "width", "height")]
    return [tuple(getattr(plan[0], name) for name in names) if len(plan) else None for plan in plans]


class Given:
    """A generator of given numbers."""

    def __init__(self, *numbers: float) -> None:
        self.random = iter(numbers).__next__


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", SIZES, ids=str)
@pytest.mark.parametrize("size", [1, 20, 64, 100, (40, 90), (300, 7)], ids=str)
def test_resize(size, sides, channels):
    pixels = picture(*sides, channels=channels)
    made = image.Resize(size)(tensor(pixels))
    if size != 1:  # torch refuses so many weights for a pixel
        assert difference(made, v2.Resize(size, antialias=True)(tensor(pixels)))[0] <= 1
    columns, rows = made.shape[2], made.shape[1]
    by_pillow = np.array(
        Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).resize((columns, rows), Image.BILINEAR)
    )
    assert difference(made.permute(1, 2, 0).reshape(by_pillow.shape), by_pillow)[0] <= 1
    assert np.array_equal(image.Resize(size)(pixels), made.permute(1, 2, 0)), "arrays and tensors"


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_dtypes_that_pictures_do_not_have(dtype):
    with pytest.raises(InvalidError, match=f"^dtype={dtype}: pictures are uint8, float32, float16, bfloat16$"):
        image.ToDtype(dtype)


def test_tensors_of_both_layouts():
    """The first dimension tells, where both are possible. The result has the layout of the picture."""
    steps = image.Compose(
        [image.Resize(30), image.RandomCrop(24), image.ColorJitter(0.3), image.ToDtype("float32", scale=True)]
    )
    pixels = tensor(picture(50, 40))
    planes = steps(pixels, np.random.default_rng(1))
    made = steps(pixels.permute(1, 2, 0), np.random.default_rng(1))
    assert (made.shape, made.dtype) == ((24, 24, 3), torch.float32)
    assert torch.equal(made.permute(2, 0, 1), planes)
    assert image.CenterCrop(2)(torch.zeros(3, 9, 3, dtype=torch.uint8)).shape == (3, 2, 2)
    with pytest.raises(InvalidError, match="pictures have 1 or 3 channels"):
        image.CenterCrop(2)(torch.zeros(9, 9, 4, dtype=torch.uint8))


def test_resize_with_max_size():
    for sides in SIZES[1:]:
        pixels = tensor(picture(*sides))
        assert image.Resize(50, max_size=60)(pixels).shape == v2.Resize(50, max_size=60)(pixels).shape


def test_bicubic():
    """torchvision computes bicubic weights with a = -0.5 and rounds as Pillow did before version 13."""
    pixels = picture(300, 200)
    assert difference(
        image.Resize((90, 100), interpolation=v2.InterpolationMode.BICUBIC)(tensor(pixels)),
        v2.Resize((90, 100), interpolation=v2.InterpolationMode.BICUBIC)(tensor(pixels)),
    )[0] <= 1  # fmt: skip


def test_how_far_bicubic_is_from_others():
    """The guide has these limits. Pillow 13 goes down first where that is less work, and what it cuts in between
    differs."""
    newer = int(importlib.metadata.version("pillow").split(".")[0]) >= 13
    worst, above, values = 0.0, 0, 0
    for sides in ((200, 250), (210, 270), (60, 300), (250, 200), (100, 90), (350, 300)):
        black_and_white = np.random.default_rng(sides).integers(0, 2, (*sides[::-1], 3), np.uint8) * 255
        for pixels in (picture(*sides), black_and_white):
            made = image.Resize((224, 224), interpolation="bicubic")(pixels)
            theirs = F.resize(tensor(pixels), [224, 224], interpolation=v1.InterpolationMode.BICUBIC, antialias=True)
            across = Image.fromarray(pixels).resize((224, sides[1]), Image.BICUBIC)
            for other in (theirs.permute(1, 2, 0), across.resize((224, 224), Image.BICUBIC)):
                apart = np.abs(made.astype(int) - np.asarray(other))
                assert apart.max() <= 2, sides
                above, values = above + int((apart > 1).sum()), values + apart.size
            at_once = Image.fromarray(pixels).resize((224, 224), Image.BICUBIC)
            worst = max(worst, difference(made, at_once)[0])
    assert above < values / 100_000
    assert (20 < worst <= 31) if newer else worst <= 2


@pytest.mark.parametrize("sides", SIZES, ids=str)
@pytest.mark.parametrize("size", [1, 20, 63, 64, 65, (40, 90), (91, 6)], ids=str)
def test_center_crop_and_flip_are_exact(size, sides):
    pixels = tensor(picture(*sides))
    assert torch.equal(image.CenterCrop(size)(pixels), v2.CenterCrop(size)(pixels))
    assert torch.equal(image.RandomHorizontalFlip(1)(pixels), F.horizontal_flip(pixels))
    floats = pixels / 255
    assert torch.equal(image.CenterCrop(size)(floats), v2.CenterCrop(size)(floats))
    assert torch.equal(image.RandomHorizontalFlip(1)(floats), F.horizontal_flip(floats))


@pytest.mark.parametrize("padding", [None, 3, (2, 5), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("size", [20, (33, 10), (90, 12)], ids=str)
def test_random_crop_is_exact(size, padding):
    pixels = tensor(picture(40, 50))
    step = image.RandomCrop(size, padding, pad_if_needed=True, fill=(7, 8, 9))
    theirs = v2.RandomCrop(size, padding, pad_if_needed=True, fill=(7, 8, 9))
    for seed in range(30):
        torch.manual_seed(seed)
        parameters = theirs.make_params([pixels])
        padded = F.pad(pixels, parameters["padding"], fill=[7, 8, 9])
        expected = theirs.transform(pixels, parameters)
        rows, columns = (n - m + 1 for n, m in zip(padded.shape[1:], expected.shape[1:]))
        given = Given((parameters["top"] + 0.5) / rows, (parameters["left"] + 0.5) / columns)
        assert torch.equal(step(pixels, given), expected)


@pytest.mark.parametrize("size", [32, (20, 50)], ids=str)
def test_resized_crop(size):
    pixels, generator = tensor(picture(200, 150)), np.random.default_rng(1)
    for _ in range(30):
        state = generator.bit_generator.state
        ((x, y, width, height),) = boxes(image.RandomResizedCrop(size), 200, 150, generator, 1)
        pair = [size, size] if isinstance(size, int) else list(size)
        expected = F.resized_crop(pixels, y, x, height, width, pair, antialias=True)
        generator.bit_generator.state = state
        assert difference(image.RandomResizedCrop(size)(pixels, generator), expected)[0] <= 1


def test_normalised_bit_for_bit():
    """As ToTensor and Normalize. v2's ToDtype multiplies by 1/255 in place of the division: its last bit differs."""
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    ours = image.Compose([image.ToDtype(torch.float32, scale=True), image.Normalize(MEAN, STD)])
    theirs = v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])
    assert torch.equal(ours(tensor(pixels)), theirs(Image.fromarray(pixels)))
    assert np.array_equal(ours(pixels), theirs(Image.fromarray(pixels)).permute(1, 2, 0))
    assert torch.equal(ours.transforms[1](tensor(pixels) / 255), theirs(Image.fromarray(pixels))), "floats in"
    newer = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    assert difference(ours(tensor(pixels)), newer(tensor(pixels)))[0] < 1e-6
    unscaled = [image.ToDtype(torch.float32), image.Normalize((100.0, 90.0, 80.0), (50.0, 60.0, 70.0))]
    expected = F.normalize(tensor(pixels).float(), (100.0, 90.0, 80.0), (50.0, 60.0, 70.0))
    assert torch.equal(image.Compose(unscaled)(tensor(pixels)), expected)


def test_scale_of_v2():
    """The guide says by how much v2's ToDtype differs from ours, which divides as ToTensor does."""
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).repeat(3, 1, 1)
    ours, theirs = image.ToDtype(torch.float32, True)(pixels), v2.ToDtype(torch.float32, True)(pixels)
    assert torch.equal(ours, v1.functional.convert_image_dtype(pixels))
    last_bits = (ours.view(torch.int32) - theirs.view(torch.int32)).abs()
    assert last_bits.max() == 1
    assert last_bits.sum() == 3 * 126
    assert (ours - theirs).abs().max() < 6e-8
    normalize = image.Normalize(MEAN, STD)
    assert (normalize(ours) - normalize(theirs)).abs().max() < 7.2e-7
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(ours.to(dtype), v2.ToDtype(dtype, True)(pixels))
        assert torch.equal(normalize(ours).to(dtype), normalize(theirs).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_floats_are_rounded_once(dtype):
    pixels = tensor(picture(30, 20))
    steps = [image.ToDtype(torch.float32, scale=True), image.Normalize(MEAN, STD)]
    wide = image.Compose(steps)(pixels)
    assert torch.equal(image.Compose([*steps, image.ToDtype(dtype)])(pixels), wide.to(dtype))
    assert torch.equal(image.ToDtype(dtype)(wide), wide.to(dtype))
    assert torch.equal(image.ToDtype(dtype, scale=True)(pixels), (pixels.float() / 255).to(dtype))
    flipped = image.Compose([image.ToDtype(dtype), image.RandomHorizontalFlip(1)])(pixels)
    assert torch.equal(image.RandomHorizontalFlip(1)(flipped), pixels.to(dtype))


FUNCTIONS = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
OLDER = tuple(getattr(v1.functional, function.__name__.removesuffix("_image")) for function in FUNCTIONS)


def in_order(order: Sequence[int], parts: Sequence[float]) -> Given:
    """The numbers for which ColorJitter takes this order, and these parts of its ranges."""
    shuffle, sorted_ = [], list(range(4))
    for k in (3, 2, 1):  # what Fisher and Yates must draw
        at = sorted_.index(order[k])
        shuffle.append((at + 0.5) / (k + 1))
        sorted_[k], sorted_[at] = sorted_[at], sorted_[k]
    return Given(*shuffle, *parts)


def noise(width: int, height: int, seed: int, channels: int = 3) -> np.ndarray:
    """Colours of all kinds, beside each other. Here small differences of a step become large in the next one."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


# Where torch has no instruction that multiplies and adds, it rounds twice.
APART_FROM_V2 = 8 if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else 0


@pytest.mark.parametrize("channels", [1, 3])
def test_each_colour_adjustment(channels):
    names = ("brightness", "contrast", "saturation", "hue")
    for number, (name, function) in enumerate(zip(names, FUNCTIONS)):
        for k, factor in enumerate((0.0, 0.3, 0.9, 1.1, 1.9) if name != "hue" else (-0.5, -0.2, 0.01, 0.3, 0.5)):
            for make in (picture, noise):
                pixels = tensor(make(60, 50, seed=10 * number + k, channels=channels))
                made = image.ColorJitter(**{name: (factor, factor)})(pixels, np.random.default_rng(0))
                assert difference(made, function(pixels, factor))[0] <= APART_FROM_V2, (name, factor)


@pytest.mark.parametrize(("strength", "hue"), [(0.4, 0), (0.4, 0.1), (0.8, 0), (0.8, 0.3)])
def test_colour_jitter_in_each_order(strength, hue):
    """The order and the factors that torchvision draws, given to all. The guide has the limits of v1's transforms on
    Pillow's pictures. Pillow keeps hues in 8 bits, so torchvision's two forms differ as much."""
    most, mean = ((24, 2) if hue > 0.2 else (17, 2)) if hue else (3, 0.4) if strength < 0.5 else (4, 0.7)
    step = image.ColorJitter(strength, strength, strength, hue)
    for seed, order in enumerate(itertools.permutations(range(4))):
        parts = np.random.default_rng(seed).random(4)
        pixels = (picture, noise)[seed % 2](60, 50, seed)
        by_pillow, by_tensor = Image.fromarray(pixels), tensor(pixels)
        for k in order:
            low, high = (-hue, hue) if k == 3 else (1 - strength, 1 + strength)
            factor = low + (high - low) * parts[k]
            if hue or k < 3:
                by_pillow, by_tensor = OLDER[k](by_pillow, factor), FUNCTIONS[k](by_tensor, factor)
        made = step(pixels, in_order(order, parts if hue else parts[:3]))
        assert difference(made, by_tensor.permute(1, 2, 0))[0] <= APART_FROM_V2, order
        worst, average = difference(made, by_pillow)
        assert worst <= most, order
        assert average <= mean, order


@pytest.mark.parametrize("value", [0, 0.5, (0.1, 0.2, 0.3), "random"], ids=str)
def test_erasing(value):
    pixels = image.ToDtype(torch.float32, scale=True)(tensor(picture(60, 50)))
    generator = np.random.default_rng(2)
    for _ in range(10):
        state = generator.bit_generator.state
        made = image.RandomErasing(p=1, value=value)(pixels, generator)
        generator.bit_generator.state = state
        ((x, y, width, height),) = boxes(image.RandomErasing(p=1), 60, 50, generator, 1)
        patch = made[:, y : y + height, x : x + width]
        if value != "random":
            expected = F.erase(pixels, y, x, height, width, torch.tensor(value).float().reshape(-1, 1, 1))
            assert torch.equal(made, expected)
        else:
            assert torch.equal(F.erase(pixels, y, x, height, width, patch), made), "only the box differs"
            count = patch.numel()
            assert abs(patch.mean()) < 5 / math.sqrt(count)
            assert abs(patch.std() - 1) < 5 / math.sqrt(count)


def apart(a: list[float], b: list[float]) -> float:
    """The statistic of Kolmogorov and Smirnov, over its standard deviation: above 2.5 once in 100,000 cases."""
    a, b = np.sort(a), np.sort(b)
    places = np.concatenate([a, b])
    largest = np.abs(np.searchsorted(a, places, "right") / len(a) - np.searchsorted(b, places, "right") / len(b)).max()
    return float(largest * math.sqrt(len(a) * len(b) / (len(a) + len(b))))


@pytest.mark.parametrize("sides", [(500, 375), (30, 200), (6, 5)], ids=str)
def test_boxes_of_resized_crops_have_torchvisions_distribution(sides):
    (width, height), count = sides, 3000
    torch.manual_seed(1)
    generator, blank = np.random.default_rng(1), torch.empty(1, height, width)
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    theirs = [v1.RandomResizedCrop.get_params(blank, scale, ratio) for _ in range(count)]
    found = boxes(image.RandomResizedCrop(1, scale, ratio), width, height, generator, count)
    ours = [(y, x, h, w) for x, y, w, h in found]
    for what in (
        lambda b: b[0],
        lambda b: b[1],
        lambda b: b[2],
        lambda b: b[3],
        lambda b: b[2] * b[3],
        lambda b: b[3] / b[2],
    ):
        assert apart([what(box) for box in ours], [what(box) for box in theirs]) < 2.5


@pytest.mark.parametrize(("sides", "scale"), [((150, 100), (0.02, 0.33)), ((6, 5), (0.3, 1.0))], ids=str)
def test_boxes_of_erasing_have_torchvisions_distribution(sides, scale):
    (width, height), count, ratio = sides, 3000, (0.3, 3.3)
    torch.manual_seed(2)
    generator, blank = np.random.default_rng(2), torch.empty(1, height, width)
    theirs = [v1.RandomErasing.get_params(blank, scale, ratio, [0.0])[:4] for _ in range(count)]
    ours = boxes(image.RandomErasing(1, scale, ratio), width, height, generator, count)
    found = [(0, 0, width, height) if box is None else box for box in ours]  # as torchvision, if none fits
    turned = [(y, x, h, w) for x, y, w, h in found]
    for k in range(4):
        assert apart([box[k] for box in turned], [box[k] for box in theirs]) < 2.5
    assert apart([box is None for box in ours], [box[2:] == (height, width) for box in theirs]) < 2.5


def test_boxes_of_crops_and_flips_have_torchvisions_distribution():
    marks = torch.arange(60, dtype=torch.uint8).reshape(1, 1, 60).expand(1, 50, 60)
    generator = np.random.default_rng(3)
    torch.manual_seed(3)
    ours, theirs = ([int(step(marks)[0, 0, 0]) for _ in range(4000)] for step in (
        lambda picture: image.RandomCrop(20)(picture, generator), v1.RandomCrop(20)))  # fmt: skip
    assert set(ours) == set(theirs) == set(range(41))
    assert apart(ours, theirs) < 2.5
    turned = sum(int(image.RandomHorizontalFlip(0.3)(marks, generator)[0, 0, 0]) == 59 for _ in range(4000))
    assert abs(turned - 1200) < 150


def test_torchs_seed_counts_without_a_generator():
    step, pixels = image.RandomCrop(8), tensor(picture(40, 40))

    def drawn(seed: int) -> list[bytes]:
        torch.manual_seed(seed)
        return [step(pixels).numpy().tobytes() for _ in range(5)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1))) > 1
    given = [step(pixels, torch.Generator().manual_seed(seed)).numpy().tobytes() for seed in (1, 1, 2)]
    assert given[0] == given[1] != given[2]


def pictures(transform=lambda picture: picture) -> Of:
    return Of(lambda index: (transform(tensor(picture(60, 50, index % 2))), index), 24)


def test_as_a_transform_of_torchs_loader():
    """Workers draw different numbers, and the program's seed sets them."""
    usual = image.Compose(
        [image.RandomResizedCrop(32), image.RandomHorizontalFlip(), image.ToDtype(torch.float32, True)]
    )

    def epoch(seed: int) -> list:
        torch.manual_seed(seed)
        return [pixels.clone() for pixels, _ in torch.utils.data.DataLoader(pictures(usual), 4, num_workers=2)]

    first, again, other = epoch(1), epoch(1), epoch(2)
    assert first[0].shape == (4, 3, 32, 32)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])
    same = [pixels for batch in first for pixels in batch][::2]
    assert len({pixels.numpy().tobytes() for pixels in same}) == len(same), "each sample has numbers of its own"


def test_as_augment_of_our_torch_loader():
    usual = image.Compose(
        [image.RandomResizedCrop(32), image.RandomHorizontalFlip(), image.ToDtype(torch.bfloat16, True)]
    )

    def epochs(workers: int) -> list:
        torch.manual_seed(1)
        with_cache = stocached.torch.DataLoader(
            pictures(), 4, shuffle=True, num_workers=workers, size="8MiB", augment=usual
        )  # fmt: skip
        made = [(pixels.clone(), labels.clone()) for _ in range(2) for pixels, labels in with_cache]
        with_cache.close()
        return made

    first, second = epochs(0), epochs(2)
    assert first[0][0].dtype == torch.bfloat16
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(first, second))


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
def test_decoded_as_torchvision_does():
    kinds = [{"subsampling": k} for k in range(3)] + [{"mode": "L"}, {"mode": "CMYK"}, {"progressive": True}]
    kinds += [{"orientation": k} for k in range(2, 9)]
    for kind, sides in itertools.product(kinds, [*SIZES, (300, 1), (33, 16), (640, 97)]):
        data = encoded(picture(*sides), **kind)
        bytes_ = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        theirs = torchvision.io.decode_jpeg(bytes_, torchvision.io.ImageReadMode.RGB, apply_exif_orientation=True)
        worst, mean = difference(image.decode(data, layout="chw"), theirs)
        assert worst <= 2, (kind, sides)
        assert mean <= 0.5, (kind, sides)


def test_pictures_of_a_program_that_has_torch_stay_arrays():
    assert isinstance(image.Resize(9)(picture(20, 20)), np.ndarray)
    assert image.decode(io.BytesIO(encoded(picture(20, 20))).getvalue()).shape == (20, 20, 3)
    assert python("import stocached.image, sys; print('torch' in sys.modules)").stdout == "False\n"
