"""A folder of pictures with a folder for each class, as torchvision's ImageFolder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .._common.errors import UnsupportedError
from .._samples.schema import Field
from .decoding import Decode
from .pipeline import Files, Pipeline
from .steps import Compose

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


class Decoded:
    """What datasets of files share: how a file becomes a picture, and what the user makes of it."""

    def __init__(
        self,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        decode: dict[str, Any],
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        self.decode = Decode(**decode)

    def _sample(self, data: bytes, name: Any, target: Any) -> tuple[Any, Any]:
        return self._picture(data, name), target if self.target_transform is None else self.target_transform(target)

    def _picture(self, data: bytes, name: Any) -> Any:
        transform, decode = self.transform, self.decode
        if isinstance(transform, Compose) and transform.decode is not None:
            return transform.after(transform.decode.decode(data, name))
        picture = decode.decode(data, name)
        return picture if transform is None else transform(picture)

    def _only_decodes(self) -> Decode:
        """What makes its pictures, if nothing else does. Else UnsupportedError."""
        if self.target_transform is not None:
            raise UnsupportedError(f"target_transform={self.target_transform!r:.80}")
        transform = self.transform
        if isinstance(transform, Compose) and transform.decode is not None and not transform.in_c():
            return transform.decode
        if transform is not None:
            raise UnsupportedError(f"transform={transform!r:.80} does more than decode")
        return self.decode


class Folder(Decoded):
    """dataset[i] is (picture, class), a uint8 array and an int.

    root: has a folder for each class, with the files of pictures in it and in its subfolders.
    transform, target_transform: are called with a picture, and with the number of a class. A Compose whose first step
        is Decode decodes the file itself.
    is_valid_file: tells by its path whether a file counts. None: by its extension.
    allow_empty: whether a class may have no file.
    decode: settings of `Decode`, such as size=224 or short_side=256.

    classes, class_to_idx, samples, imgs and targets are those of torchvision's ImageFolder, as are its errors. Can be
    pickled as its transforms can. Any number of threads and forked children."""

    _files: Files | None = None  # for C

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        **decode: Any,
    ) -> None:
        super().__init__(transform, target_transform, decode)
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        self.classes = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        if not self.classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {self.root}.")
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        valid = is_valid_file or (lambda path: path.lower().endswith(EXTENSIONS))
        self.samples = self.imgs = [
            (path, number)
            for name, number in self.class_to_idx.items()
            for folder, _, files in sorted(os.walk(os.path.join(self.root, name), followlinks=True))
            for path in (os.path.join(folder, file) for file in sorted(files))
            if valid(path)
        ]
        self.targets = [number for _, number in self.samples]
        empty = sorted(set(self.classes) - {self.classes[number] for number in set(self.targets)})
        if empty and not allow_empty:
            hint = "" if is_valid_file else f"Supported extensions are: {', '.join(EXTENSIONS)}"
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(empty)}. {hint}")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        with open(path, "rb", buffering=0) as file:
            return self._sample(file.readall(), path, target)

    def pipeline(self, augment: Any, fields: Sequence[Field] = (), sample_bytes: int = 0) -> Pipeline:
        """What worker threads of a loader do in C. augment: of the loader. fields, sample_bytes: of its cache; 0 if
        samples vary in size. UnsupportedError, which says why C cannot do it."""
        if type(self).__getitem__ is not Folder.__getitem__:
            raise UnsupportedError(f"{type(self).__name__} has a __getitem__ of its own")
        # Programs may change entries of the list, so each loader's epoch looks.
        if self._files is None or self._files.samples != self.samples:
            self._files = Files(self.samples)
        return Pipeline(self._files, self._only_decodes(), augment, fields, sample_bytes, False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}

    def __repr__(self) -> str:
        return f"Folder({os.fspath(self.root)!r}, {len(self)} pictures of {len(self.classes)} classes, {self.decode})"
