"""Block files with changed bytes and numbers, with right checksums too: each sample is right, or an error says why."""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct

import pytest
from prepared import FIELDS, VARIABLE, Made, same, sample

from stocached import StocachedError
from stocached._common.checksum import crc32c
from stocached._prepared.description import _compact
from stocached.prepare import BlockStorage, prepare

NUMBERS = [0, 1, 7, 63, 2**31, 2**32 - 1, 2**63, 2**64 - 1]


def change_bytes(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    how = draw.randrange(4)
    if how == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at:at] = draw.randbytes(draw.randrange(1, 100))
    else:
        data[at : at + 64] = bytes(len(data[at : at + 64]))


def change_footer(data: bytearray, draw: random.Random) -> None:
    """A word of the footer, with a right checksum."""
    footer = struct.unpack_from("<Q", data, len(data) - 80)[0]
    size = draw.choice([4, 8])
    at = len(data) - draw.randrange(16 + size, min(footer, len(data)) + 1)
    data[at : at + size] = (draw.choice(NUMBERS) % 256**size).to_bytes(size, "little")
    begin = len(data) - footer
    data[-16:-12] = struct.pack("<I", crc32c(bytes(data[begin:-16])))


def change_description(data: bytearray, draw: random.Random) -> None:
    """A number or text of dataset.json, with a right checksum."""
    document = json.loads(data)
    inner = document
    while isinstance(inner, (dict, list)) and inner:
        key = draw.choice(list(inner)) if isinstance(inner, dict) else draw.randrange(len(inner))
        if isinstance(inner[key], (dict, list)) and inner[key] and draw.random() < 0.9:
            inner = inner[key]
            continue
        inner[key] = draw.choice([*NUMBERS, -1, 1.5, 10**30, None, True, "", "x", [], {}, [1]])
        break
    document.pop("crc32c", None)
    crc = crc32c(_compact(document)[:-1])
    data[:] = json.dumps({**document, "crc32c": f"{crc:08x}"}, indent=2).encode()


@pytest.mark.parametrize("fields", [FIELDS, VARIABLE], ids=["fixed", "variable"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_changed_block_files(tmp_path, fields, compression):
    whole, made = tmp_path / "whole", 12
    prepare(
        Made(made, fields), BlockStorage(whole, compression=compression, block_bytes=4096, file_bytes=8192), processes=1
    )
    draw, refused = random.Random(1), 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(90):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        change = (change_bytes, change_footer, change_description)[turn % 3]
        names = ["dataset.json"] if change is change_description else sorted(p.name for p in folder.iterdir())
        if change is change_footer:
            names.remove("dataset.json")
        path = folder / draw.choice(names)
        data = bytearray(path.read_bytes())
        change(data, draw)
        path.write_bytes(data)
        try:
            storage = BlockStorage(folder)
            found = {k: storage.load_sample(k) for k in range(made)}
            storage.close()
        except (StocachedError, OSError):
            refused += 1
            continue
        for k, value in found.items():
            assert same(value, sample(fields, k)), (turn, path.name, k)
    assert refused > 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
