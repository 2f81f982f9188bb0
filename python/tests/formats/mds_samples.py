"""The samples of mds.zip, and the program that wrote its folders with Streaming's own writer: version 0.13.0, and 0.5.0 the
folder "old", as version 0.5.0 knows no arrays. python mds_samples.py FOLDER NAME..."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = {
    "cls": "int", "data": "bytes", "json": "json", "mean": "float32", "text": "str", "tokens": "ndarray:uint16",
}  # fmt: skip
SAMPLES = [
    {
        "cls": k,
        "data": bytes([k]) * (k % 7),
        "json": {"k": [k, None]},
        "mean": np.float32(k / 4),
        "text": f"é{k}" * (k % 3),
        "tokens": np.arange(k % 4 + 1, dtype=np.uint16),
    }
    for k in range(60)
]

_NUMBERS = [
    np.dtype(f"{kind}{size}") for kind, sizes in {"u": "1248", "i": "1248", "f": "248"}.items() for size in sizes
]
_PICTURE = b"\xff\xd8 as it lies"
ENCODINGS: dict[str, Any] = {
    **{dtype.name: dtype.type(7) for dtype in _NUMBERS},
    **{f"ndarray:{dtype.name}": np.arange(1, 7, dtype=dtype).reshape(2, 3) for dtype in _NUMBERS},
    "bytes": b"\x00\xff",
    "int": -(2**63),
    "jpeg": _PICTURE,
    "jpeg_array": [_PICTURE, b"second"],
    "json": [None, {"é": 1.5}],
    "ndarray": np.ones((300, 1), np.int16),
    "ndarray:float32:2,1": np.array([[1], [2]], np.float32),
    "pil": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    "list[pil]": [np.arange(6, dtype=np.uint8).reshape(3, 2), np.full((1, 1), 70_000, np.int32)],
    "png": b"\x89PNG",
    "str": "é\n",
    "str_decimal": Decimal("0.10"),
    "str_float": 0.1,
    "str_int": 2**70,
}


def main() -> None:
    from PIL import Image
    from streaming import MDSWriter

    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        columns = {column: encoding for column, encoding in COLUMNS.items() if name != "old" or column != "tokens"}
        options = {"hashes": ["sha1", "xxh64"]} if name in ("raw", "gz") else {}
        with MDSWriter(
            out=str(folder / name),
            columns=columns,
            compression=None if name in ("raw", "old") else name,
            size_limit=1600 if name in ("raw", "old") else 800,
            **options,
        ) as writer:
            for sample in SAMPLES:
                writer.write(sample)
    given = ENCODINGS | {
        "pil": Image.fromarray(ENCODINGS["pil"]),
        "list[pil]": [*map(Image.fromarray, ENCODINGS["list[pil]"])],
    }
    if "old" not in sys.argv:
        columns = {name.replace(":", "_"): name for name in ENCODINGS}
        with MDSWriter(out=str(folder / "encodings"), columns=columns) as writer:
            writer.write({name: given[encoding] for name, encoding in columns.items()})
        with MDSWriter(out=str(folder / "pickled"), columns={"a": "pkl", "b": "int"}) as writer:
            writer.write({"a": {1}, "b": 2})


if __name__ == "__main__":
    main()
