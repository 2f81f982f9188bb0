"""One table of odd files, through every way in: each file has one right answer, or is an error everywhere."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_files import FILES, NATIVE, OTHERS, Odd
from pictures import difference
from served import Server, program

from stocached import FetchError, Loader, image
from stocached._image.workers import call
from stocached._native import _image_header as native

SIZE = (14, 20)  # the size of the samples where all have one
GOOD = {name: odd for name, odd in NATIVE.items() if not odd.error}
BAD = {name: odd for name, odd in NATIVE.items() if odd.error}

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")


def near(made: Any, odd: Odd) -> None:
    assert difference(made, odd.right)[0] <= odd.off


@pytest.fixture(scope="module")
def decoded() -> np.ndarray:
    """The good files as samples of one size, in the order of GOOD. `test_decode` says that they are right."""
    return np.stack([image.decode(odd.data, SIZE, fit="stretch") for odd in GOOD.values()])


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "files" / "class").mkdir(parents=True)
    for k, odd in enumerate(GOOD.values()):
        (tmp_path / "files" / "class" / f"{k:03}.png").write_bytes(odd.data)  # the content tells, and not the name
    return tmp_path / "files"


@pytest.mark.parametrize("name", FILES)
def test_decode(name):
    odd = FILES[name]
    if odd.error:
        with pytest.raises(image.DecodeError):
            image.decode(odd.data)
    else:
        near(image.decode(odd.data), odd)


def test_all_bytes_of_a_result_are_written():
    for odd in GOOD.values():
        height, width, _ = odd.right.shape
        made, how = np.full(odd.right.shape, 99, np.uint8), native.Decode(width=width, height=height, layout=native.HWC)
        call(native.decode, "a file", odd.data, len(odd.data), how, made.ctypes.data, made.nbytes)
        near(made, odd)


def test_decode_by_pillow(monkeypatch, decoded):
    """As an installation without the headers does. A resize goes across and down in the same order."""
    from stocached._image import codecs

    monkeypatch.setattr(codecs, "pixels", lambda: 0)
    for name, odd in FILES.items():
        if odd.error:
            with pytest.raises(image.DecodeError):
                image.decode(odd.data)
        else:
            assert difference(image.decode(odd.data), odd.right)[0] == 0, name
    for (name, odd), right in zip(GOOD.items(), decoded, strict=True):
        assert difference(image.decode(odd.data, SIZE, fit="stretch"), right)[0] <= odd.off, name


def rows(dataset: Any, **options: Any) -> np.ndarray:
    """All pictures of a dataset, out of a loader's second epoch."""
    loader = Loader(dataset, 8, **options)
    for _ in range(2):
        batches = [np.array(batch[0] if isinstance(batch, (list, tuple)) else batch) for batch in loader]
    loader.close()
    return np.concatenate(batches)


@pytest.mark.parametrize("options", [{}, {"size": "8MiB"}, {"size": "8MiB", "store": "encoded"}], ids=str)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker": "process"}], ids=str)
def test_folder(good, decoded, options, workers):
    made = rows(image.Folder(good, size=SIZE, fit="stretch"), **options, **workers)
    assert np.array_equal(made, decoded)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=str)
def test_shards(good, decoded, workers):
    with tarfile.open(good.parent / "shard.tar", "w") as shard:
        for path in sorted((good / "class").iterdir()):
            shard.add(path, path.name)
    made = rows(image.Shards(str(good.parent / "shard.tar"), label="", size=SIZE, fit="stretch"), **workers)
    assert np.array_equal(made, decoded)


DECODE = {"resize": list(SIZE), "layout": "hwc"}
NO_HELPER = not program().with_name("stocached-decode").exists()


@pytest.mark.skipif(NO_HELPER, reason="no stocached-decode: headers of the decoders are missing")
@pytest.mark.torch
@pytest.mark.parametrize("store", ["decoded", "encoded"])
def test_server(server: Server, decoded, store):
    from stocached.torch import SourceDataset

    files = {f"{k:03}.jpg": odd.data for k, odd in enumerate((GOOD | BAD | OTHERS).values())}
    server.files(files, decode=DECODE | {"store": store}, size="64MiB")
    dataset = SourceDataset(server.name)
    made = dataset.__getitems__(list(range(len(GOOD))))
    assert np.array_equal(np.stack([np.asarray(sample) for sample in made]), decoded)
    for k, odd in enumerate((BAD | OTHERS).values(), len(GOOD)):
        if odd.error:
            with pytest.raises(FetchError, match="DAMAGED"):
                dataset[k]
        else:
            assert np.array_equal(dataset[k], image.decode(odd.data, SIZE, fit="stretch"))


@pytest.mark.skipif(NO_HELPER, reason="no stocached-decode: headers of the decoders are missing")
def test_commands(good, decoded, tmp_path):
    """`source verify` and `pack --decode` read what a server would."""
    how = ["--decode", f"resize=[{SIZE[0]},{SIZE[1]}],layout=hwc"]

    def run(*arguments: Any, status: int = 0) -> str:
        done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout

    said = json.loads(run("source", "verify", good, *how, "--json"))
    assert (said["read"], said["failed"]) == (len(GOOD), 0)
    run("pack", good, tmp_path / "packed", *how)
    for k in (0, len(GOOD) // 2, len(GOOD) - 1):
        done = subprocess.run(
            [program(), "source", "cat", tmp_path / "packed", str(k), "--field", "image"],
            capture_output=True,
            check=True,
        )
        assert done.stdout == decoded[k].tobytes()
    for k, odd in enumerate((BAD | OTHERS).values()):
        (good / "class" / f"bad{k:03}.png").write_bytes(odd.data)
    said = json.loads(run("source", "verify", good, *how, "--json", status=4))
    assert said["failed"] == len(BAD) + sum(odd.error for odd in OTHERS.values())
    kinds = {kind["kind"]: kind for kind in said["kinds"]}
    assert {name: kinds[name]["samples"] for name in ("GIF", "BMP", "TIFF", "ICO")} == {
        "GIF": 3,
        "BMP": 1,
        "TIFF": 1,
        "ICO": 1,
    }
    assert sorted(name for name in kinds if not kinds[name]["other"]) == ["JPEG", "PNG", "WebP", "unknown"]
