"""Folder and Shards, in our loader and in prepare."""

from __future__ import annotations

import base64
import json
import operator
import os
import pickle
import re
import subprocess
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from native_samples import tar_of
from pictures import encoded, folder_of, picture
from served import program

from stocached import InvalidError, Loader, SampleIndexError, image
from stocached._common.checksum import crc32c
from stocached._shards import tar_index

SOURCE = Path(__file__).resolve().parents[3] / "source"
TESTDATA = SOURCE / "tar" / "testdata"
ODD_NAMES = SOURCE / "sourcetest" / "odd_names.txt"


@pytest.fixture
def root(tmp_path) -> Path:
    return folder_of(tmp_path / "train", {"cat": 9, "ant": 7, "bee": 8})


@pytest.fixture
def shards(tmp_path) -> Path:
    """Three shards of four samples."""
    for shard in range(3):
        members = {}
        for k in range(4 * shard, 4 * shard + 4):
            members[f"train/{k:06}.jpg"] = encoded(picture(60, 50, k))
            members[f"train/{k:06}.cls"] = str(k % 5).encode()
            members[f"train/{k:06}.json"] = json.dumps({"label": 100 + k}).encode()
        tar_of(tmp_path / f"train-{shard:03}.tar", members)
    return tmp_path


def test_folder(root):
    dataset = image.Folder(root)
    assert dataset.classes == ["ant", "bee", "cat"]
    assert dataset.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    assert len(dataset) == 24
    assert dataset.targets == [0] * 7 + [1] * 8 + [2] * 9
    pixels, label = dataset[10]
    assert label == 1
    assert dataset.samples[10] == (str(root / "bee" / "003.jpg"), 1)
    assert np.array_equal(pixels, image.decode(root / "bee" / "003.jpg"))
    assert np.array_equal(dataset[-1][0], dataset[23][0])
    assert len(list(dataset)) == 24
    with pytest.raises(IndexError):
        dataset[24]


def test_a_folder_without_folders_of_classes_says_where_pictures_lie(root):
    with pytest.raises(FileNotFoundError, match=r"any class folder in .*ant\. Pictures lie in folders inside it"):
        image.Folder(root / "ant")


def test_folder_with_transforms(root):
    small = image.Folder(root, transform=np.mean, target_transform=str, size=32, layout="chw")
    assert small[0] == (np.mean(image.decode(small.samples[0][0], 32)), "0")
    whole = image.Compose([image.Decode(), image.Resize(40), image.CenterCrop(32), image.ToDtype("float32")])
    pixels, _ = image.Folder(root, whole)[3]
    assert pixels.dtype == np.float32
    assert np.array_equal(pixels, image.decode(small.samples[3][0], 32, short_side=40))
    with pytest.raises(TypeError, match="siz"):
        image.Folder(root, siz=3)


def test_errors_of_a_folder_name_the_file(root):
    (root / "bee" / "003.jpg").write_bytes(b"not a picture")
    dataset = image.Folder(root, size=32)
    with pytest.raises(image.DecodeError, match=r"bee/003\.jpg: no picture"):
        dataset[10]
    for workers in (0, 2):
        loader = Loader(dataset, 4, num_workers=workers, size="16MiB")
        with pytest.raises(image.DecodeError, match=r"bee/003\.jpg: no picture"):
            list(loader)
        loader.close()
    (root / "bee" / "003.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"bee/003\.jpg"):
        dataset[10]
    loader = Loader(dataset, 4, num_workers=1, size="16MiB", allow_random=True)
    with pytest.raises(FileNotFoundError, match=r"bee/003\.jpg"):
        list(loader)
    loader.close()


@pytest.mark.parametrize(
    "transform",
    [
        image.Compose([image.Decode(), image.RandomHorizontalFlip(), image.RandomCrop(200)]),
        image.Compose([image.RandomCrop(200)]),
        image.RandomCrop(200),
        image.Compose([image.Decode(), image.Normalize(0.5, 0.5)]),
    ],
    ids=["after Decode", "Compose", "a step", "floats"],
)
def test_errors_of_steps_name_the_file(root, shards, transform):
    """As errors of files do."""
    with pytest.raises(InvalidError, match=r"bee/003\.jpg: (RandomCrop|Normalize)"):
        image.Folder(root, transform)[10]
    of_shards = image.Shards(shards / "train-*.tar", transform)
    with pytest.raises(InvalidError, match=rf"{re.escape(of_shards.name(1))}: (RandomCrop|Normalize)"):
        of_shards[1]


def odd_names() -> list[str]:
    """The names of files that Go's tests take too."""
    lines = ODD_NAMES.read_text().splitlines()
    return [os.fsdecode(unquote_to_bytes(line.partition(": ")[2])) for line in lines if line[0] != "#"]


def test_odd_names(tmp_path):
    """A file is found by its own name, whatever that is: in a folder, in a shard, and in a shard of such a name."""
    names = [name.replace("/", "-") + ".png" for name in odd_names()]
    assert len(names) >= 40
    pictures = {name: encoded(picture(24, 24, k), "PNG") for k, name in enumerate(names)}
    (tmp_path / "folder" / "class").mkdir(parents=True)
    for name, data in pictures.items():
        (tmp_path / "folder" / "class" / name).write_bytes(data)
    shard = tar_of(tmp_path / "all.tar", pictures)
    (tmp_path / "shards").mkdir()
    single = [tar_of(tmp_path / "shards" / f"{name}.tar", {name: data}) for name, data in pictures.items()]
    wanted = {picture(24, 24, k).tobytes() for k in range(len(names))}
    for dataset in (image.Folder(tmp_path / "folder"), image.Shards(shard), image.Shards(single)):
        for workers in (0, 1):
            loader = Loader(dataset, len(names), num_workers=workers, size="16MiB")
            (batch,) = loader
            pixels = batch[0] if isinstance(dataset, image.Folder) else batch
            assert {np.asarray(one).tobytes() for one in pixels} == wanted
            loader.close()


def test_pickled_datasets(root, shards):
    for dataset in (image.Folder(root, size=32), image.Shards(shards / "train-*.tar", size=32)):
        dataset[0]
        again = pickle.loads(pickle.dumps(dataset))
        assert len(again) == len(dataset)
        assert np.array_equal(again[7][0], dataset[7][0])
        assert repr(again) == repr(dataset)


def test_shards(shards):
    dataset = image.Shards(shards / "train-{000..002}.tar")
    assert len(dataset) == 12
    for k in (0, 5, 11, -1):
        pixels, label = dataset[k]
        assert label == k % 12 % 5
        assert np.array_equal(pixels, image.decode(encoded(picture(60, 50, k % 12))))
    for wrong in (12, -13):
        with pytest.raises(SampleIndexError):
            dataset[wrong]
    assert dataset.shards == image.Shards([shards / "train-000.tar", str(shards / "train-{001,002}.tar")]).shards
    assert dataset.shards == image.Shards(str(shards / "train-*.tar")).shards


def test_labels_of_shards(shards):
    by_json = image.Shards(shards / "train-*.tar", label="json", target_transform=operator.itemgetter("label"))
    assert [by_json[k][1] for k in range(12)] == list(range(100, 112))
    alone = image.Shards(shards / "train-*.tar", label="", size=8)
    assert alone[3].shape == (8, 8, 3)
    assert image.Shards(shards / "train-*.tar", np.mean, label="")[3] == np.mean(
        alone.decode.but(size=None)(encoded(picture(60, 50, 3)))
    )


def test_a_sample_is_one_read(shards, monkeypatch):
    dataset, reads = image.Shards(shards / "train-*.tar"), []
    dataset[5]
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: (reads.append(arguments), pread(*arguments))[1])
    dataset[6]
    assert len(reads) == 1
    dataset[0]
    assert len(reads) == 2


def test_odd_shards(tmp_path):
    jpeg, small = encoded(picture(60, 50)), encoded(picture(9, 9), "PNG")
    tar_of(tmp_path / "a.tar", {"1.JPG": jpeg, "1.cls": b"7\n", "2.cls": b"8", "2.seg.png": small, "2.png": small})
    dataset = image.Shards(tmp_path / "a.tar")
    assert [dataset[k][1] for k in range(2)] == [7, 8]
    assert dataset[1][0].shape == (9, 9, 3)
    far = {"1.cls": b"3", "1.txt": bytes(10**6), "1.jpg": jpeg}
    assert image.Shards(tar_of(tmp_path / "far.tar", far))[0][1] == 3
    lacks = tar_of(tmp_path / "lacks.tar", {"1.jpg": jpeg, "2.jpg": jpeg, "2.cls": b"1", "3.cls": b"1"})
    with pytest.raises(InvalidError, match=r"sample 2 has none of the fields jpg;"):
        image.Shards(lacks)
    assert [label for _, label in (image.Shards(lacks, missing="skip")[k] for k in range(1))] == [1]
    assert len(image.Shards(lacks, missing="skip")) == 1
    for name, members, message in (
        ("twice.tar", {"1.jpg": jpeg, "1.cls": b"1", "1.JPG": jpeg}, "field 'jpg' twice"),
        ("text.tar", {"1.jpg": jpeg, "1.cls": b"dog"}, r"1\.cls \(sample 0\): no label"),
        ("broken.tar", {"a/1.jpg": jpeg[:500], "a/1.cls": b"1"}, r"broken\.tar: a/1\.jpg \(sample 0\): "),
    ):
        with pytest.raises((InvalidError, image.DecodeError), match=message):
            image.Shards(tar_of(tmp_path / name, members))[0]
    assert len(image.Shards(tar_of(tmp_path / "empty.tar", {}))) == 0
    assert len(image.Shards(tar_of(tmp_path / "folders.tar", {"x": b"", "y/.z": b""}))) == 0


def test_unknown_arguments(root, shards):
    for name in ("sizee", "loader"):
        for make, where in ((image.Folder, root), (image.Shards, shards / "train-000.tar")):
            with pytest.raises(
                TypeError,
                match=rf"^{make.__name__}\(\) got an unexpected keyword argument '{name}'; .* Decode are size, short_side,",
            ):
                make(where, **{name: 3})


def test_shards_that_are_damaged(shards, tmp_path):
    whole = (shards / "train-000.tar").read_bytes()
    end = len(whole.rstrip(b"\0"))
    for name, data, message in (
        ("cut.tar", whole[: end - 3000], "end mark|is truncated at"),
        ("mark.tar", whole[: -(-end // 512) * 512], "end mark"),
        ("text.tar", b"this is text" * 100, r"text\.tar is no tar archive"),
        ("nothing.tar", b"", r"nothing\.tar has no end mark"),
        ("zip.tar", b"\x1f\x8b" + whole, "compressed with gzip"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidError, match=message) as error:
            image.Shards(tmp_path / name)
        assert name in str(error.value)
    for pattern in ("none-*.tar", "train-{000,000}.tar"):
        with pytest.raises(InvalidError, match="no file|twice"):
            image.Shards(shards / pattern)
    with pytest.raises(FileNotFoundError):
        image.Shards(shards / "train-{000..003}.tar")
    dataset = image.Shards(shards / "train-000.tar")
    (shards / "train-000.tar").write_bytes(whole + b"\0")
    with pytest.raises(InvalidError, match=r"train-000\.tar has changed"):
        dataset[0]


def found_in(path: Path, members: tar_index.Members) -> list[dict[str, bytes]]:
    data = path.read_bytes()
    at, size = members.places, members.sizes
    return [
        {members.fields[members.numbers[m]]: data[at[m] : at[m] + size[m]] for m in range(a, b)}
        for a, b in zip(members.starts, members.starts[1:])
    ]


@pytest.mark.parametrize("name", sorted(p.name for p in TESTDATA.glob("*.tar") if not p.name.startswith("sparse")))
def test_members_are_those_of_webdataset_and_of_the_server(name, tmp_path):
    expected = json.loads((TESTDATA / "wds.json").read_text())[name]
    expected = [{field: base64.b64decode(data) for field, data in sample["fields"].items()} for sample in expected]
    path = tmp_path / name
    path.write_bytes((TESTDATA / name).read_bytes())
    walked = tar_index.members_of(str(path))
    assert found_in(path, walked) == expected
    fields = ["--source", f"fields=[{walked.fields[0]}],missing=skip"]
    subprocess.run([program(), "source", "info", str(path), *fields], check=True, capture_output=True)
    index = tmp_path / f"{name}.stocached-index"
    decoded = tar_index._decoded(index.read_bytes(), walked.stamp)
    assert decoded is not None, "the server's index is used"
    assert found_in(path, decoded) == expected
    assert tar_index._read_index(str(index), walked.stamp) is not None
    index.chmod(0o666)  # anybody may have written it, so it may lie
    assert tar_index._read_index(str(index), walked.stamp) is None
    index.chmod(0o644)
    damaged = bytearray(index.read_bytes())
    damaged[-9] ^= 1
    forged = []
    count = len(decoded.starts)
    for at, number in ((104, 1), (104 + 4 * count - 4, 2**31), (104 + (4 * count + 7) // 8 * 8, -1)):
        made = bytearray(index.read_bytes())
        made[at : at + 4] = (number % 2**32).to_bytes(4, "little")
        made[12:16] = crc32c(bytes(made[16:])).to_bytes(4, "little")
        forged.append(bytes(made))
    for bad in (bytes(damaged), bytes(damaged[:50]), b"", *forged):
        index.write_bytes(bad)
        assert found_in(path, tar_index.members_of(str(path))) == expected


@pytest.mark.parametrize("name", sorted(p.name for p in TESTDATA.glob("sparse*.tar")))
def test_sparse_members_are_refused(name):
    with pytest.raises(InvalidError, match="sparse"):
        tar_index._walked(str(TESTDATA / name), (0, 0))


USUAL = image.Compose(
    [
        image.RandomResizedCrop(24),
        image.RandomHorizontalFlip(),
        image.ColorJitter(0.2, 0.2),
        image.ToDtype("float32", scale=True),
        image.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


@pytest.mark.parametrize(("kind", "worker"), [("folder", "process"), ("shards", "thread"), ("short side", "process")])
def test_two_epochs_with_a_cache(root, shards, kind, worker):
    """A real use: decoded pictures in a cache, random steps after it. Workers change nothing."""
    if kind == "shards":
        dataset = image.Shards(shards / "train-*.tar", size=32, layout="chw")
    else:
        dataset = image.Folder(root, layout="chw", **({"size": 32} if kind == "folder" else {"short_side": 32}))

    def epochs(workers: int) -> tuple[list, int]:
        loader = Loader(
            dataset, 8, shuffle=True, seed=3, num_workers=workers, size="16MiB", augment=USUAL, worker=worker
        )
        made = [(pixels.copy(), labels.copy()) for _ in range(2) for pixels, labels in loader]
        stats = loader.stats()
        assert stats.hits >= len(dataset), "the second epoch comes from the cache"
        assert stats.hits + stats.misses == 2 * len(dataset)
        loader.cache.close()
        loader.close()
        return made

    first, second = epochs(0), epochs(2)
    assert first[0][0].shape[1:] == (3, 24, 24)
    assert first[0][0].dtype == np.float32
    assert len(first) == len(second) == 2 * -(-len(dataset) // 8)
    assert all(np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(first, second))
    seen = sorted(int(label) for _, labels in first for label in labels)
    assert seen == sorted(2 * [dataset[k][1] for k in range(len(dataset))])


def test_forked_children_read_at_their_own_places(shards):
    dataset = image.Shards(shards / "train-*.tar", size=16)
    expected = [dataset[k][0] for k in range(12)]
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            order = np.random.default_rng(child).permutation(120) % 12
            os._exit(0 if all(np.array_equal(dataset[k][0], expected[k]) for k in order) else 1)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
