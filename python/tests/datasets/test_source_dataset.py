"""SourceDataset: a cache that a server fills, read by torch's DataLoader."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
import time
from typing import Any

import numpy as np
import pytest
from helpers import pattern
from processes import limit
from served import expected, write_pictures
from torch_helpers import TORCH_WARNINGS, DataLoader, torch
from torch_helpers import SourceDataset as dataset

import stocached

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def loader(source: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(source, **{"batch_size": 8, "shuffle": True, **options})


def skip_where_bytes_are_not_collated() -> None:
    try:
        torch.utils.data.default_collate([b"", b"two"])
    except RuntimeError:
        pytest.skip(f"default_collate of torch {torch.__version__} takes no bytes; that of 2.0.1 and later does")


def numbered(sample: Any) -> Any:
    """A transform at the top of a module, because pickle needs that."""
    return int(sample[0]), sample.float()


def text(sample: bytes) -> str:
    return f"{os.getpid()} {sample.decode()}"


# ------------------------------------------------------------ samples


def test_samples_are_tensors(server):
    server.data.write_bytes(np.arange(20 * 6, dtype=np.float32).tobytes())
    server.serve({"kind": "raw", "shape": [2, 3], "dtype": "float32"})
    source = dataset(server.name)
    assert len(source) == 20
    assert source[3].dtype == torch.float32
    assert source[3].tolist() == [[18, 19, 20], [21, 22, 23]]
    assert source[-1].tolist() == source[19].tolist() == source[np.int64(19)].tolist()
    batch = source.__getitems__([4, 0, 4])
    assert [sample[0, 0].item() for sample in batch] == [24, 0, 24]
    assert source.__getitems__([]) == []
    for index in (20, -21):
        with pytest.raises(IndexError, match="the dataset has 20 samples"):
            source[index]
    assert server.name in repr(source)


def test_samples_are_the_caller_s_own(server):
    server.records()
    source = dataset(server.name)
    first = source[5]
    first.zero_()
    held = source.__getitems__([1, 2, 3])
    for _ in range(20):
        source.__getitems__([4, 5, 6])
    assert (torch.stack(held).numpy() == expected([1, 2, 3])).all()
    assert (source[5].numpy() == pattern(5)).all()


def test_transform(server):
    server.records(30)
    batches = list(loader(dataset(server.name, transform=numbered), batch_size=10, shuffle=False))
    assert [batch[0].tolist() for batch in batches] == [
        [int(pattern(k)[0]) for k in range(start, start + 10)] for start in (0, 10, 20)
    ]
    assert batches[0][1].dtype == torch.float32


def test_samples_of_any_size_are_bytes(server):
    server.files({f"{k}.txt": f"text {k}".encode() * k for k in range(10)}, size="64MiB")
    source = dataset(server.name)
    assert source[3] == b"text 3" * 3
    assert source[0] == b""
    skip_where_bytes_are_not_collated()
    read = [value for batch in loader(source, batch_size=4, shuffle=False) for value in batch]
    assert read == [f"text {k}".encode() * k for k in range(10)]
    for worker, batch in enumerate(
        loader(dataset(server.name, transform=text), batch_size=5, shuffle=False, num_workers=2)
    ):
        assert batch[1].partition(" ")[2] == f"text {5 * worker + 1}" * (5 * worker + 1)


def test_fields_are_a_dict(server):
    write_pictures(server)
    source = dataset(server.name)
    sample = source[3]
    assert sample["image"].shape == (3, 4, 4)
    assert sample["image"].dtype == torch.uint8
    assert sample["label"].item() == 1
    (batch,) = loader(source, shuffle=False)
    assert batch["image"].shape == (6, 3, 4, 4)
    assert batch["label"].tolist() == [0, 0, 0, 1, 1, 1]


def test_files_that_the_server_keeps_are_decoded_here(server):
    from pictures import encoded, picture

    from stocached import image

    files = {f"{'cat' if k % 2 else 'ant'}/{k}.jpg": encoded(picture(40 + k, 30, k)) for k in range(8)}
    server.files(files | {"dog/bad.jpg": b"\xff\xd8 no picture"}, {"labels": "folders"}, size="64MiB")
    want = [(image.decode(files[name], 24, layout="chw"), number) for number, name in enumerate(sorted(files))]
    source = dataset(server.name, transform=image.Decode(24, layout="chw"))
    for k, (pixels, _) in enumerate(want):
        assert np.array_equal(source[k]["data"], pixels)
        assert source[k]["label"].item() == (k >= 4)
    with pytest.raises(image.DecodeError, match=rf"^sample 8 of cache '{server.name}': (?!bytes)"):
        source[8]
    larger = dataset(server.name, transform=image.Compose([image.Decode(24), image.RandomCrop(25)]))
    with pytest.raises(
        stocached.InvalidError, match=rf"^sample 3 of cache '{server.name}': RandomCrop of 25 x 25 is larger"
    ):
        larger[3]
    steps = image.Compose([image.Decode(24, layout="chw"), image.RandomHorizontalFlip(), image.ToDtype("float32")])
    half = torch.utils.data.Subset(dataset(server.name), range(8))
    for workers in (0, 2):
        batches = [list(DataLoader(half, 4, seed=1, augment=steps, num_workers=workers)) for _ in range(2)]
        for one, other in zip(*batches, strict=True):
            assert one["data"].dtype == torch.float32
            assert torch.equal(one["data"], other["data"])
        first = torch.cat([batch["data"] for batch in batches[0]]).numpy()
        flipped = [not np.array_equal(got, pixels) for got, (pixels, _) in zip(first, want)]
        for got, (pixels, _), turned in zip(first, want, flipped):
            assert np.array_equal(got, pixels[:, :, ::-1] if turned else pixels)
        assert 0 < sum(flipped) < 8


# ------------------------------------------------------------ loaders


def test_workers(server):
    """The workers read two epochs, each in a new order. Every sample comes once in an epoch, and is
    read once."""
    server.records(96)
    source = dataset(server.name)
    source[0]  # opens a connection
    batches = loader(source, num_workers=3, multiprocessing_context="fork", persistent_workers=True)
    of = {pattern(k).tobytes(): k for k in range(96)}
    for _ in range(2):
        samples = [of[row.numpy().tobytes()] for batch in batches for row in batch]
        assert sorted(samples) == list(range(96)) != samples
    assert server.reads() == 96
    assert (source.stats().hits, source.stats().misses) == (97, 96)


def test_the_server_restarts_in_the_middle_of_an_epoch(server):
    server.records(96, limits={"latency": "10ms", "concurrency": 1})
    batches = loader(dataset(server.name, timeout=60), num_workers=2)
    read = 0
    for k, batch in enumerate(batches):
        if k == 2:
            server.kill()
            timer = threading.Timer(0.5, server.start)
            timer.start()
        read += len(batch)
    timer.join()
    assert read == 96
    assert dataset(server.name).stats().ready == 96


def test_without_a_server_hits_go_on_and_misses_say_what_to_do(server):
    server.records(20)
    dataset(server.name).__getitems__(range(10))
    source = dataset(server.name)
    source.timeout = 0.2  # on a busy machine, it may take longer to make it
    server.kill()
    assert (source[9].numpy() == pattern(9)).all()
    start = time.monotonic()
    with pytest.raises(stocached.NoServerError, match="stocached serve -c"):
        source.__getitems__([9, 10])
    assert time.monotonic() - start < limit(2)
    # comes through the worker with its own type
    with pytest.raises(stocached.NoServerError, match="stocached serve -c"):
        list(loader(source, num_workers=2))
    with pytest.raises(FileNotFoundError, match="stocached serve -c"):
        dataset(server.name, timeout=0.2)


@pytest.mark.parametrize("has_run", [True, False])
def test_the_constructor_waits_for_a_server_and_names_the_caller_s_line(server, has_run):
    """Also if none has ever run: a cache of this class is always a server's."""
    server.records()
    server.stop()
    if not has_run:
        shutil.rmtree(server.sockets)
    start = time.monotonic()
    with (
        pytest.warns(UserWarning, match=f"waiting up to 2.2 s for the server of the cache '{server.name}'") as said,
        pytest.raises(stocached.CacheNotFoundError, match="stocached serve -c"),
    ):
        dataset(server.name, timeout=2.2)
    assert time.monotonic() - start >= 2.2
    assert [warning.filename for warning in said] == [__file__]


def test_a_file_that_cannot_be_read_is_named(server):
    server.files({f"{k}.txt": b"x" for k in range(8)}, size="64MiB")
    source = dataset(server.name)
    (server.data / "5.txt").unlink()
    for workers in (0, 2):
        with pytest.raises(stocached.FetchError, match=r"sample 5: READ: .*5\.txt"):
            list(loader(source, num_workers=workers))


def test_pickled(server):
    server.records(10)
    source = dataset(server.name, transform=numbered, timeout=7)
    source[1]
    again = pickle.loads(pickle.dumps(source))
    assert again.timeout == 7
    assert len(again) == 10
    assert (again[2][1].numpy() == pattern(2)).all()
    assert again.cache.uuid == source.cache.uuid


def test_a_name_is_needed(server):
    with pytest.raises(stocached.InvalidError, match="name is 7"):
        dataset(7)
