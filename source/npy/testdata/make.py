"""Makes the golden files beside it with numpy: python make.py [FOLDER] [SEED].

Every dtype in format 1.0, some in 2.0 and 3.0. golden.json has, for each file, its
dtype, the shape of a row and the bytes of each row in hex.
"""

import json
import pathlib
import sys

import numpy as np

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "complex64", "complex128"]
SHAPES = {"uint8": (3, 2, 5), "int64": (4,), "float32": (3, 7), "complex64": (3, 1, 2, 2)}


def main(folder, seed):
    rng = np.random.default_rng(seed)
    golden = []

    def save(name, x, version):
        with open(folder / name, "wb") as out:
            np.lib.format.write_array(out, x, version=version, allow_pickle=False)
        golden.append({"file": name, "dtype": x.dtype.name, "row": x.shape[1:], "rows": [np.ascontiguousarray(r).tobytes().hex() for r in x]})

    for name in DTYPES:
        dtype = np.dtype(name)
        shape = SHAPES.get(name, (3, 2))
        data = rng.integers(0, 2 if name == "bool" else 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
        x = data.view(dtype).reshape(shape)
        save(f"{name}.npy", x, (1, 0))
        if name in ("uint8", "float32"):
            save(f"{name}-v2.npy", x, (2, 0))
            save(f"{name}-v3.npy", x, (3, 0))
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
