"""stocached.image.decode against Pillow, and with files that are no pictures."""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import itertools
import pickle
import struct
import subprocess
import sys
import threading
import weakref
import zlib
from pathlib import Path

import numpy as np
import odd_files
import pytest
from helpers import python
from pictures import Image, difference, encoded, folder_of, picture
from PIL import ImageOps, features
from processes import in_child, in_threads, meanwhile

from stocached import InvalidError, Loader, _native, image, source
from stocached._checks.derived_fingerprint import derive
from stocached._image import workers
from stocached._native import _image_header as native

ROOT = Path(__file__).resolve().parents[3]
SIZES = [(1, 1), (1, 300), (300, 1), (17, 31), (33, 16), (500, 375), (3000, 5), (5, 2000), (640, 97)]
KINDS = {
    "4:4:4": dict(subsampling=0),
    "4:2:2": dict(subsampling=1),
    "4:2:0": dict(subsampling=2),
    "grey": dict(mode="L"),
    "cmyk": dict(mode="CMYK"),
    "progressive": dict(progressive=True, subsampling=2),
    "restarts": dict(subsampling=2, restart_marker_blocks=2),
}


def by_pillow(data: bytes, size=None, fit="crop", short_side=None, filter=Image.BILINEAR, fill=0) -> np.ndarray:
    """What decode does, in the words of Pillow and torchvision."""
    import io

    source = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    width, height = source.size
    if size is None and short_side is None:
        return np.array(source)
    short = min(width, height)
    if size is None:
        return np.array(source.resize((width * short_side // short, height * short_side // short), filter))
    rows, columns = size
    if fit == "stretch":
        return np.array(source.resize((columns, rows), filter))
    if fit == "pad":
        by_width = width * rows >= height * columns
        scaled = (columns, max(height * columns // width, 1)) if by_width else (max(width * rows // height, 1), rows)
        made = Image.new("RGB", (columns, rows), (fill,) * 3)
        place = (round((columns - scaled[0]) / 2), round((rows - scaled[1]) / 2))
        made.paste(source.resize(scaled, filter), place)
        return np.array(made)
    side = short_side or min(rows, columns)
    while width * side // short < columns or height * side // short < rows:
        side += 1
    resized = source.resize((width * side // short, height * side // short), filter)
    x, y = round((resized.width - columns) / 2), round((resized.height - rows) / 2)
    return np.array(resized.crop((x, y, x + columns, y + rows)))


def assert_near(made: np.ndarray, expected: np.ndarray) -> None:
    worst, mean = difference(made, expected)
    assert worst <= 2, (worst, mean)
    assert mean <= 0.5, (worst, mean)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sides", SIZES, ids=str)
def test_decoded_as_pillow_does(sides, kind):
    data = encoded(picture(*sides), **KINDS[kind])
    assert_near(image.decode(data), by_pillow(data))


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("size", [(1, 1), (24, 24), (50, 31), (300, 400)], ids=str)
@pytest.mark.parametrize("kind", ["4:2:0", "progressive", "cmyk"])
@pytest.mark.parametrize("sides", [(1, 1), (17, 31), (500, 375), (200, 50), (90, 200)], ids=str)
def test_decoded_and_resized_as_pillow_does(sides, kind, size, fit):
    data = encoded(picture(*sides), **KINDS[kind])
    made = image.decode(data, size, fit=fit, fill=77)
    assert_near(made, by_pillow(data, size, fit, fill=77))
    planes = image.decode(data, size, fit=fit, fill=77, layout="chw")
    assert np.array_equal(planes, made.transpose(2, 0, 1))


@pytest.mark.parametrize("sides", [(500, 375), (375, 500), (64, 65), (100, 700)], ids=str)
@pytest.mark.parametrize("size", [None, 224, (100, 256)], ids=str)
def test_short_side_is_torchvisions_resize(sides, size):
    data = encoded(picture(*sides))
    pair = (size, size) if isinstance(size, int) else size
    assert_near(image.decode(data, size, short_side=256), by_pillow(data, pair, short_side=256))


@pytest.mark.parametrize("size", [None, (40, 40)], ids=str)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation, size):
    for format in ("JPEG", "WEBP"):
        data = encoded(
            picture(83, 59), format, orientation=orientation, **({"lossless": True} if format == "WEBP" else {})
        )
        assert_near(image.decode(data, size), by_pillow(data, size))


@pytest.mark.parametrize(
    ("orientation", "filter"), [(turn, ("bilinear", "bicubic")[(turn + turn // 5) % 2]) for turn in range(1, 9)]
)
def test_a_turned_picture_is_resized_as_it_is_shown(orientation, filter):
    """Noise has all roundings. 500 rows into 3 need many rows of the file at once, and the short side stays."""
    for width, height in ((83, 59), (33, 500), (500, 33)):
        pixels = np.random.default_rng(orientation).integers(0, 256, (height, width, 3), np.uint8)
        for format, how in (("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
            data = encoded(pixels, format, orientation=orientation, **how)
            whole = image.decode(data)
            for size in (40, 90, (3, 71), (71, 3), (height, 2 * width), (2 * width, height)):
                resized = image.Resize(size, filter)(whole)
                for more, made in ([], resized), ([image.CenterCrop((25, 31))], image.CenterCrop((25, 31))(resized)):
                    for layout in ("hwc", "chw"):
                        steps = [image.Decode(layout=layout), image.Resize(size, filter), *more]
                        together = image.Compose(steps)(data)
                        shown = together if layout == "hwc" else together.transpose(1, 2, 0)
                        assert np.array_equal(shown, made), (width, height, format, size, steps)


@pytest.mark.parametrize("size", [(59, 83), (59, 90), (70, 83), (59, 40), (30, 83)], ids=str)
@pytest.mark.parametrize("orientation", [1, 2, 4, 6])
def test_results_of_the_sides_of_a_webp_file_and_near_them(orientation, size):
    """A decoder that writes the result itself does so for no other than the whole file as it lies."""
    data = encoded(picture(83, 59), "WEBP", lossless=True, orientation=orientation)
    for options in ({"fit": "crop"}, {"fit": "pad", "fill": 77}, {"short_side": 90}):
        made = image.decode(data, size, **options)
        assert_near(made, by_pillow(data, size, **options))
        assert np.array_equal(image.decode(data, size, layout="chw", **options), made.transpose(2, 0, 1))


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_other_formats_go_through_pillow(format, fit):
    data = encoded(picture(130, 70), format)
    assert difference(image.decode(data), by_pillow(data)) == (0, 0)
    for size in ((48, 48), (20, 200)):
        assert difference(image.decode(data, size, fit=fit), by_pillow(data, size, fit))[0] <= 1
    assert image.decode(data, 48, layout="chw").shape == (3, 48, 48)


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA"])
def test_modes_of_png(mode):
    data = encoded(picture(31, 17), "PNG", mode)
    assert difference(image.decode(data), by_pillow(data)) == (0, 0)


@pytest.mark.parametrize(("colour", "samples"), [(2, 3), (6, 4)])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_filters_of_png(width, colour, samples):
    def png(sides: tuple[int, int], interlaced: int, rows: bytes) -> bytes:
        head = struct.pack(">IIBBBBB", *sides, 8, colour, 0, 0, interlaced)
        chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(odd_files.chunk(*chunk) for chunk in chunks)

    random = np.random.default_rng(width)
    passes = png((8, 8), 1, b"\1" * (15 + 64 * samples))  # each byte may be a filter, but only 15 are
    assert difference(image.decode(passes), by_pillow(passes)) == (0, 0)
    for filters in itertools.product(range(6), repeat=3):
        data = png((width, 3), 0, b"".join(bytes([one]) + random.bytes(samples * width) for one in filters))
        if 5 in filters:
            with pytest.raises(image.DecodeError, match="filter"):
                image.decode(data)
        else:
            assert difference(image.decode(data), by_pillow(data)) == (0, 0)


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("size", [(224, 224), (40, 90), (500, 10)], ids=str)
def test_both_ways_have_one_geometry(size, fit):
    """The size, the window and the middle of a picture are the same in C and in Python."""
    for sides in ((1, 7), (13, 200), (321, 320), (50, 50)):
        jpeg = encoded(picture(*sides), subsampling=0)
        png = encoded(image.decode(jpeg), "PNG")
        assert np.array_equal(image.decode(jpeg, size, fit=fit), image.decode(png, size, fit=fit)), sides


def test_bicubic():
    """Pillow's resize in two steps, first across: Pillow 13 has the other order, and rounds in between."""
    data = encoded(picture(300, 200), "PNG")
    source = Image.fromarray(image.decode(data))
    expected = np.array(source.resize((100, 200), Image.BICUBIC).resize((100, 90), Image.BICUBIC))
    made = image.decode(data, (90, 100), fit="stretch", filter="bicubic")
    assert difference(made, expected)[0] <= 1
    assert difference(made, image.decode(data, (90, 100), fit="stretch"))[0] > 1


FAR = (76, 4)  # the scaled picture is hardly larger than the result
FAST = {((1000, 800), 224): (15, 1.1), ((1500, 1200), 224): (15, 1.1), ((500, 375), 100): (15, 1.1),
        ((1000, 800), 400): FAR, ((1000, 800), 100): FAR, ((1504, 1200), 150): FAR, ((1500, 1200), 126): FAR}  # fmt: skip


@pytest.mark.parametrize(("sides", "size"), FAST)
def test_fast_is_near(sides, size):
    """As docs/spec/image.md says. The decoder may scale a picture whose sides are no multiples of 8."""
    for orientation in (1, 3, 6) if size == 100 else (1,):
        data = encoded(picture(*sides), orientation=orientation)
        worst, mean = difference(image.decode(data, size, fast=True), image.decode(data, size))
        assert worst <= FAST[sides, size][0]
        assert 0 < mean <= FAST[sides, size][1]


def test_sources(tmp_path):
    data = encoded(picture(50, 40))
    (tmp_path / "a.jpg").write_bytes(data)
    expected = image.decode(data)
    for file in (
        tmp_path / "a.jpg",
        str(tmp_path / "a.jpg"),
        bytearray(data),
        memoryview(data),
        np.frombuffer(data, np.uint8),
    ):
        assert np.array_equal(image.decode(file), expected)


def test_a_picture_of_a_table_of_hugging_face(tmp_path):
    data = encoded(picture(50, 40))
    (tmp_path / "a.jpg").write_bytes(data)
    for file in ({"bytes": data, "path": "a.jpg"}, {"bytes": None, "path": str(tmp_path / "a.jpg")}):
        made = image.Decode()({"caption": "text", "image": file, "label": 1})
        assert (made["caption"], made["label"]) == ("text", 1)
        assert np.array_equal(made["image"], image.decode(data))
    with pytest.raises(InvalidError, match="no picture in dict"):
        image.Decode()({"image": {"data": data}})
    sound = {"bytes": b"RIFF....WAVE", "path": None}
    for sample in (
        {"image": data, "other": {"bytes": data, "path": None}},
        {"image": data, "other": sound},
        {"sound": sound, "image": data},
        {"note": None, "image": {"bytes": data, "path": None}},
    ):
        made = image.Decode()(sample)
        assert [name for name, value in made.items() if isinstance(value, np.ndarray)] == ["image"]
    with pytest.raises(image.DecodeError, match="no picture, or of an unknown format"):
        image.Decode()({"sound": sound})


@pytest.mark.parametrize("null", [None, {"bytes": None, "path": None}])
def test_a_null_is_a_bad_sample(null):
    rows = source([{"image": null if i == 7 else encoded(picture(5, 4)), "label": i} for i in range(20)])
    pipe = rows.map(image.Decode(size=4))
    with pytest.warns(UserWarning, match="sample 7: .*image: null in place of a picture"):
        loaded = [i for batch in Loader(pipe, 4, bad_samples="skip") for i in batch["label"]]
    assert loaded == [*range(7), *range(8, 20)]
    with pytest.raises(image.DecodeError, match="element 7 of .*: image: null in place of a picture"):
        list(Loader(pipe, 4))


def header_of(width: int, height: int) -> bytes:
    """A JPEG file that says that it has so many pixels, and ends."""
    frame = struct.pack(">BHHB", 8, height, width, 3) + bytes([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0])
    scan = bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])
    part = lambda marker, body: bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body  # noqa: E731
    return b"\xff\xd8" + part(0xC0, frame) + part(0xDA, scan)


JPEG, PNG = encoded(picture(200, 100)), encoded(picture(200, 100), "PNG")
GIF_BOMB = struct.pack("<6sHH", b"GIF89a", 65500, 65500) + encoded(picture(20, 10), "GIF")[10:]
PNG_BOMB = PNG[:12] + struct.pack(">4sII", b"IHDR", 65500, 65500) + PNG[24:29]
PNG_BOMB += struct.pack(">I", zlib.crc32(PNG_BOMB[12:])) + PNG[33:]
BAD = {
    "cut off": JPEG[: len(JPEG) // 2],
    "after its header": JPEG[:400],
    "two bytes": b"\xff\xd8",
    "no bytes": b"",
    "text": b"This is no picture.\n" * 50,
    "cut off png": PNG[: len(PNG) // 2],
    "bomb": header_of(65500, 65500),
    "png of the name jpg, cut off": PNG[:100],
}


@pytest.mark.parametrize("size", [None, 64])
@pytest.mark.parametrize("what", BAD)
def test_errors_name_the_file(tmp_path, what, size):
    path = tmp_path / f"{what}.jpg"
    path.write_bytes(BAD[what])
    with pytest.raises(image.DecodeError) as error:
        image.decode(path, size)
    assert str(path) in str(error.value)
    assert len(str(error.value)) > len(str(path)) + 8, "it says why"
    with pytest.raises(image.DecodeError, match=r"^bytes: "):
        image.decode(BAD[what], size)
    again = pickle.loads(pickle.dumps(error.value))
    assert type(again) is image.DecodeError
    assert str(again) == str(error.value)
    assert image.decode(JPEG, 64).shape == (64, 64, 3), "the worker goes on"


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing.jpg"):
        image.decode(tmp_path / "missing.jpg")


def test_png_of_the_name_jpg_is_decoded(tmp_path):
    (tmp_path / "a.jpg").write_bytes(PNG)
    assert difference(image.decode(tmp_path / "a.jpg"), picture(200, 100)) == (0, 0)


@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
@pytest.mark.parametrize("size", [None, 64])
def test_max_pixels(data, size):
    assert image.decode(data, size, max_pixels=20_000) is not None
    with pytest.raises(
        image.DecodeError, match=r"^bytes: the picture is 200 x 100: 20000 pixels; max_pixels is 19999$"
    ):
        image.decode(data, size, max_pixels=19_999)


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "PPM"])
def test_pillows_own_limit(monkeypatch, format):
    """Pillow has one for the whole program. The error of a larger picture says so."""
    data = encoded(picture(60, 50), format)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(image.DecodeError, match="has 3000 pixels, and Pillow opens at most 2000: set PIL.Image.MAX_IM"):
        image.decode(data, max_pixels=3000)
    with pytest.raises(image.DecodeError, match=r"^bytes: the picture has 3000 pixels; max_pixels is 2999$"):
        image.decode(data, max_pixels=2999)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    with pytest.warns(Image.DecompressionBombWarning):
        assert image.decode(data).shape == (50, 60, 3)


def test_bomb_takes_no_memory():
    import resource

    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, limits[1]))  # such a picture has 12 GB
    try:
        for data in (BAD["bomb"], GIF_BOMB, PNG_BOMB):
            with pytest.raises(image.DecodeError, match="4290250000 pixels; max_pixels is 178956970"):
                image.decode(data)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_without_pillow():
    code = """
        import sys
        sys.modules["PIL"] = None
        from stocached import image
        data = bytes.fromhex(sys.argv[1])
        assert image.decode(data).shape == (3, 4, 3)
        try:
            image.decode(b"no jpeg")
        except image.DecodeError as error:
            print(error)
        assert "torch" not in sys.modules
    """
    done = python(code, encoded(picture(4, 3)).hex())
    assert done.stdout == "bytes: no JPEG, PNG or WebP file; other formats need Pillow: pip install pillow\n"


@pytest.fixture(scope="module")
def without_jpeg(tmp_path_factory):
    """A folder with libraries that were built without the headers of libjpeg-turbo."""
    folder = tmp_path_factory.mktemp("without") / "build"
    subprocess.run(["make", "-s", "-C", ROOT / "cimage", "CODECS=0", f"BUILD={folder}", "CFLAGS=-O1"], check=True)
    library = Path(_native._library.path)
    (folder / library.name).symlink_to(library.resolve())
    assert not list(folder.glob("stocached-decode"))
    return folder


def test_without_libjpeg_the_c_library_decodes_no_file(without_jpeg):
    """As its header says: the codes of enum stoc_image_code."""
    library, file = ctypes.CDLL(str(without_jpeg / "libstocached_image.so")), encoded(picture(20, 10))
    library.stoc_image_worker_new.restype = ctypes.c_void_p
    library.stoc_image_message.restype = ctypes.c_char_p
    worker = ctypes.c_void_p(library.stoc_image_worker_new())
    info, how, made = native.Info(), native.Decode(8, 8), ctypes.create_string_buffer(192)
    for call in (
        lambda: library.stoc_image_read_info(worker, file, len(file), ctypes.byref(info)),
        lambda: library.stoc_image_decode(worker, file, len(file), ctypes.byref(how), made, len(made)),
    ):
        assert call() == native.EUNSUPPORTED
        assert library.stoc_image_message(worker) == b"this library was built without libjpeg-turbo, libpng and libwebp"
    library.stoc_image_worker_free(worker)


IN_BOTH = """
    import logging, os, pickle, sys
    from pathlib import Path
    os.environ["STOCACHED_LIB_PATH"] = sys.argv[1]
    from stocached import Loader, image
    from stocached._image import codecs
    logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stdout)
    print("from stocached", bool(codecs.pixels()))
    made = []
    for data in pickle.loads(Path(sys.argv[2], "kinds").read_bytes()):
        for how in ({}, dict(size=40), dict(size=(30, 70), fit="pad"), dict(short_side=50, layout="chw"), dict(size=20, fit="stretch")):
            try:
                made.append(image.decode(data, **how))
            except image.DecodeError as error:
                made.append(str(error))
    augment = image.Compose([image.RandomResizedCrop(24), image.RandomHorizontalFlip(), image.ColorJitter(0.4)])
    for store in ("decoded", "encoded"):
        loader = Loader(image.Folder(Path(sys.argv[2], "train"), size=32), 4, seed=1, num_workers=2, size="8MiB", augment=augment, store=store)
        made += [pictures for _ in range(2) for pictures, _ in loader]
        print("worker", loader.worker)
        loader.close()
    Path(sys.argv[2], "made").write_bytes(pickle.dumps(made))
"""


def test_without_libjpeg_pillow_decodes(without_jpeg, tmp_path):
    """The same pictures by Pillow, in all functions, within what two versions of libjpeg differ by. One line says what
    to run."""
    kinds = [encoded(picture(61, 47), **how) for how in KINDS.values()]
    kinds += [encoded(picture(61, 47), orientation=turn) for turn in range(1, 9)]
    kinds += [kinds[2][:-300], b"\xff\xd8\xff\xe0 no picture"]
    (tmp_path / "kinds").write_bytes(pickle.dumps(kinds))
    folder_of(tmp_path / "train", {"cat": 4, "dog": 4})
    said, made = {}, {}
    for name, folder in (("with", _native._library.path.parent), ("without", without_jpeg)):
        said[name] = python(IN_BOTH, folder, tmp_path).stdout.splitlines()
        made[name] = pickle.loads((tmp_path / "made").read_bytes())
    assert said["with"] == ["from stocached True", "worker native", "worker native"]
    once = "this installation was built without libjpeg-turbo, libpng, libdeflate or libwebp"
    assert said["without"] == [
        "from stocached False",
        f"Pillow decodes pictures, which takes longer: {once}; on Debian and Ubuntu run: sudo apt-get install -y "
        "libjpeg-dev libpng-dev libdeflate-dev libwebp-dev && make build",
        f"workers are processes, which take more time than native ones: {once}; on Debian and Ubuntu run: sudo apt-get "
        'install -y libjpeg-dev libpng-dev libdeflate-dev libwebp-dev && make build. worker="process" hides this',
        "worker process",
        "worker process",
    ]
    assert len(made["with"]) == len(made["without"]) == 5 * len(kinds) + 8
    for ours, theirs in zip(made["with"], made["without"], strict=True):
        if isinstance(ours, str):
            assert str(theirs).startswith("bytes: "), theirs
        else:
            most, mean = difference(ours, theirs)
            assert most <= 2
            assert mean <= 0.5


def test_without_libjpeg_native_workers_say_what_to_run(without_jpeg, tmp_path):
    folder_of(tmp_path, {"cat": 2})
    code = """
        import logging, os, sys
        logging.disable()
        os.environ["STOCACHED_LIB_PATH"] = sys.argv[1]
        from stocached import InvalidError, Loader, image
        try:
            Loader(image.Folder(sys.argv[2], size=8), 2, num_workers=1, worker="native")
        except InvalidError as error:
            print(error)
    """
    assert python(code, without_jpeg, tmp_path).stdout == (
        'worker="native": this installation was built without libjpeg-turbo, libpng, libdeflate or libwebp; on Debian and Ubuntu run: sudo apt-get '
        'install -y libjpeg-dev libpng-dev libdeflate-dev libwebp-dev && make build; worker="thread" and "process" take it\n'
    )


def test_steps_need_no_libjpeg(without_jpeg):
    """Cached pictures are augmented in C by native workers, with the same bits."""
    code = """
        import os, sys
        os.environ["STOCACHED_LIB_PATH"] = sys.argv[1]
        import hashlib, numpy as np
        from stocached import image
        pixels = np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)
        steps = image.Compose([image.RandomResizedCrop(48), image.ToDtype("float32", scale=True), image.Normalize([0.5] * 3, [0.2] * 3)])
        print(hashlib.sha256(steps(pixels, np.random.default_rng(2)).tobytes()).hexdigest())
    """
    ours = python(code, _native._library.path.parent)
    assert ours.stdout == python(code, without_jpeg).stdout


def test_without_libjpeg_and_pillow(without_jpeg):
    code = """
        import os, sys
        os.environ["STOCACHED_LIB_PATH"], sys.modules["PIL"] = sys.argv[1], None
        from stocached import image
        try:
            image.decode(bytes.fromhex(sys.argv[2]))
        except image.DecodeError as error:
            print(error)
    """
    assert python(code, without_jpeg, encoded(picture(4, 3)).hex()).stdout == (
        "bytes: this installation was built without libjpeg-turbo, libpng, libdeflate or libwebp; on Debian and Ubuntu run: sudo apt-get install -y "
        "libjpeg-dev libpng-dev libdeflate-dev libwebp-dev && make build. Or: pip install pillow\n"
    )


def test_a_library_that_is_missing(tmp_path):
    """The rest of the package works, and the error says what to do."""
    library = Path(_native._library.path)
    (tmp_path / library.name).symlink_to(library.resolve())
    code = """
        import os, sys
        os.environ["STOCACHED_LIB_PATH"] = sys.argv[1]
        import stocached
        try:
            import stocached.image
        except ImportError as error:
            print(error)
    """
    assert python(code, tmp_path).stdout == (
        f"stocached.image: no library at {tmp_path}/libstocached_image.so. Run: make build\n"
    )


# The number of libjpeg-turbo 2.1 to 3.0 and of 3.1, 3.2: they smooth progressive files without details differently.
PIXELS = {
    (2, 1): "922ebdda7fa503d6",
    (3, 0): "922ebdda7fa503d6",
    (3, 1): "30386461cc877c30",
    (3, 2): "30386461cc877c30",
}


def test_the_number_of_pixels_tells_libraries_apart():
    """It is that of the library that is loaded, which may not be the one whose headers were there."""
    code = "from stocached._image import codecs; print(f'{codecs.pixels():016x}')"
    ours = python(code).stdout.strip()
    assert ours in PIXELS.values()
    bundled = [*Path(features.__file__).parents[1].glob("pillow.libs/libjpeg-*")]
    version = tuple(map(int, (features.version("libjpeg_turbo") or "0.0").split(".")[:2]))
    if not bundled or version not in PIXELS:
        pytest.skip("Pillow brings no libjpeg-turbo of a version that is known here")
    command = ["env", f"LD_PRELOAD={bundled[0]}", sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True).strip() == PIXELS[version]


def test_the_decoder_is_a_hint_of_derived_fingerprints(tmp_path, monkeypatch):
    (tmp_path / "all").mkdir()
    (tmp_path / "all/0.jpg").write_bytes(encoded(picture(8, 8)))
    before = derive(image.Folder(tmp_path, size=4))
    assert derive(image.Folder(tmp_path, size=4)).certain(before)
    monkeypatch.setattr("stocached._image.codecs.pixels", lambda: 5)
    other = derive(image.Folder(tmp_path, size=4))
    assert other.changed(before) is None
    assert not other.certain(before)
    monkeypatch.setattr("stocached._image.codecs.pixels", lambda: 0)
    assert not derive(image.Folder(tmp_path, size=4)).certain(other)
    encoded_ = derive(image.Folder(tmp_path, size=4).encoded())
    monkeypatch.undo()
    assert derive(image.Folder(tmp_path, size=4).encoded()).certain(encoded_)  # bytes depend on no decoder


@pytest.mark.parametrize(
    "arguments",
    [
        dict(size=0),
        dict(size=(1, 2, 3)),
        dict(size=64, fit="cut"),
        dict(size=64, layout="cwh"),
        dict(size=64, filter="nearest"),
        dict(size=64, short_side=32),
        dict(short_side=0),
        dict(size=64, max_pixels=0),
        dict(size=(64, 65501)),
        dict(size=True),
        dict(size=64.0),
        dict(size="64"),
        dict(size=64, fill=(1, 2)),
        dict(size=64, fill=0.5),
        dict(fast="no"),
        dict(fast=2),
    ],
    ids=str,
)
def test_mistakes(arguments):
    from stocached import InvalidError

    with pytest.raises(InvalidError, match=f"(^|[ ,]){'=|'.join(arguments)}="):
        image.decode(JPEG, **arguments)


def test_numbers_of_numpy_are_sizes():
    assert np.array_equal(image.decode(JPEG, np.int64(64)), image.decode(JPEG, 64))
    assert np.array_equal(image.decode(JPEG, np.array([32, 64])), image.decode(JPEG, (32, 64)))


@pytest.mark.parametrize("source", [12345, None, io.BytesIO(JPEG)], ids=lambda value: type(value).__name__)
def test_what_is_no_file(source):
    with pytest.raises(TypeError, match="is no file: give bytes, a uint8 array of them, or a path"):
        image.decode(source)


@pytest.mark.filterwarnings("ignore:stocached. a bad sample was left out")
def test_thin_pictures(tmp_path):
    """Their long side would be longer than any picture: the sample is bad, and can be skipped."""
    thin = encoded(np.zeros((1, 300, 3), np.uint8))
    with pytest.raises(image.DecodeError, match="300 x 1 with short_side=256 is 76800 x 256; sides are at most 65500"):
        image.decode(thin, short_side=256)
    with pytest.raises(image.DecodeError, match="60000 x 6000: 360000000 pixels; max_pixels is"):  # and takes no memory
        image.decode(encoded(np.zeros((5, 50, 3), np.uint8)), short_side=6000)
    assert image.decode(thin, 64).shape == (64, 64, 3)
    folder = tmp_path / "a"
    folder.mkdir()
    for k in range(8):
        (folder / f"{k}.jpg").write_bytes(thin if k == 5 else JPEG)
    for settings in ({}, {"size": "64MiB"}, {"size": "64MiB", "store": "encoded"}):
        for worker in ("native", "process"):
            dataset = image.Folder(tmp_path, short_side=256, layout="chw")
            loader = Loader(
                dataset,
                4,
                num_workers=1,
                worker=worker,
                augment=image.RandomResizedCrop(32),
                bad_samples="skip",
                **settings,
            )
            assert sum(len(pictures) for pictures, _ in loader) == 7
            loader.close()


def test_workers_end_with_their_threads():
    def run() -> None:
        image.decode(JPEG, 64)
        seen.append(weakref.ref(workers._here.worker))

    seen: list = []
    for _ in range(3):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    gc.collect()
    assert len(seen) == 3
    assert all(worker() is None for worker in seen)


def test_threads_decode_the_same():
    expected = image.decode(JPEG, 64)

    def run(_: int) -> None:
        assert all(np.array_equal(image.decode(JPEG, 64), expected) for _ in range(50))

    in_threads(4, run)


def test_a_child_frees_no_worker_of_its_parent():
    """Another thread of the parent may be in the middle of a call with it."""
    worker, freed = workers.Memory(), []
    in_child(lambda: (worker.__del__(free=freed.append), not freed)[1])
    worker.__del__(free=freed.append)
    assert freed == [worker.handle]


def test_forks_while_threads_decode():
    """A child has workers of threads that it does not have. It frees none of them, and decodes."""
    expected, decode = image.decode(JPEG, 64), functools.partial(image.decode, JPEG, 64)
    with meanwhile(decode, decode):
        for _ in range(8):
            in_child(lambda: (np.array_equal(decode(), expected), gc.collect())[0])
