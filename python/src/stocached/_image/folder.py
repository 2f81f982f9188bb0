"""A folder of pictures with a folder for each class, as torchvision's ImageFolder."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError, UnsupportedError
from .._common.numbers import index_of
from .._common.one_line import one_line, printable
from .._common.warning import warn_user
from .._samples.schema import Field
from .decoding import Decode, bytes_of
from .errors import steps_of
from .pipeline import Files, Pipeline, blank_pictures, files_of
from .steps import Compose, Step, not_a_step

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's

_MOST_NAMED = 5  # odd classes, in a warning

_SETTINGS = [field.name for field in dataclasses.fields(Decode)]
_INSTEAD = "use steps of stocached.image, and batch_augment=, or a .map() below .batch(), for other things"


class Decoded:
    """What datasets of files share: how a file becomes a picture, and what the user makes of it."""

    _parts_given = ("transform", "target_transform")  # for `only_ours`

    def __init__(
        self,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        decode: dict[str, Any],
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        unknown = [name for name in decode if name not in _SETTINGS]
        if unknown:
            raise TypeError(
                f"{type(self).__name__}() got an unexpected keyword argument {unknown[0]!r}; the settings of Decode are "
                f"{', '.join(_SETTINGS)}"
            )
        self.decode = Decode(**decode)

    def read(self, index: int) -> tuple[Any, ...]:
        """The bytes of the file of a sample, and the other values of the sample."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """The file of a sample, for errors."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        data, *others = self.read(index)
        transform, name = self.transform, _Name(self, index)
        if isinstance(transform, Compose) and transform.decode is not None:
            picture = transform.picture(data, name)
        else:
            picture = self.decode.decode(data, name)
            if transform is not None:
                with steps_of(name):
                    picture = transform(picture)
        return self.sample(picture, others)

    def sample(self, picture: Any, others: list[Any]) -> Any:
        """A sample of its picture, or the bytes of its file, and the other values that `read` gives."""
        return (picture, *others) if others else picture

    def _target(self, target: Any) -> Any:
        return target if self.target_transform is None else self.target_transform(target)

    @property
    def decoding(self) -> Decode | Compose:
        """The step that makes the picture of a sample out of the bytes of its file. Raises InvalidError if that takes
        more than steps of this package."""
        transform, kind = self.transform, type(self)
        if kind.__getitem__ is not Decoded.__getitem__:
            raise InvalidError(f"{kind.__name__} has a __getitem__ of its own")
        if transform is None:
            return self.decode
        if isinstance(transform, Compose) and transform.decode is not None:
            return transform
        if isinstance(transform, Step):
            return Compose([self.decode, transform])
        raise InvalidError(f"transform={one_line(transform)} is no step of stocached.image")

    @property
    def sizes_vary(self) -> bool:
        """Whether pictures may differ in size, as files do. False: that is not known, of a function of the user's."""
        try:
            return len({picture.shape for picture in blank_pictures(self.decoding)}) > 1
        except InvalidError:
            return False

    def files(self) -> Files:
        """The files of all samples, for C."""
        raise UnsupportedError(f"{type(self).__name__} has no table of files")

    def pipeline(
        self,
        augment: Any,
        fields: Sequence[Field] = (),
        sample_bytes: int = 0,
        *,
        encoded: bool = False,
        indices: Sequence[int] | None = None,
    ) -> Pipeline:
        """What worker threads of a loader do in C. augment: of the loader. fields, sample_bytes: of its cache; 0 if
        samples vary in size. encoded: the cache has the bytes of files. indices: of the samples of a Subset.

        UnsupportedError: C cannot do it; it says why."""
        try:
            decoding = self.decoding
        except InvalidError as error:
            raise UnsupportedError(f"{error}: {_INSTEAD}") from error
        if self.target_transform is not None:
            raise UnsupportedError(
                f"target_transform={one_line(self.target_transform)} is a function of Python: "
                "change labels in batch_augment="
            )
        if isinstance(decoding, Compose) and decoding.random:
            raise UnsupportedError(f"transform={one_line(self.transform)} draws random numbers; give it as augment=")
        if augment is not None and not isinstance(augment, Step):
            raise UnsupportedError(f"{not_a_step(augment)} is no step of stocached.image: {_INSTEAD}")
        files = self.files() if indices is None else self.files().subset(indices)
        steps = augment.in_c() if augment else []
        decodes = augment if isinstance(augment, Compose) and augment.decode is not None else None
        return Pipeline(
            files, decoding, steps, fields, sample_bytes, encoded, sample=self.sample, augment_decodes=decodes
        )

    def encoded(self, indices: Sequence[Any] | None = None) -> Encoded:
        """The dataset of the same samples, or of those of a Subset, with the bytes of files in place of pictures."""
        return Encoded(self, indices)


class _Name:
    """The file of a sample. Its text is made for an error alone: it may take a read."""

    def __init__(self, dataset: Decoded, index: int) -> None:
        self._dataset, self._index = dataset, index

    def __str__(self) -> str:
        return self._dataset.name(self._index)


class Encoded:
    """The samples of a dataset, with the bytes of the file, a uint8 array of one dimension, in place of the picture.

    Its fingerprint depends on no step: other steps take the same bytes."""

    _of_errors = ("_decoding",)
    indices: Sequence[Any] | None = None  # an attribute of a Subset only: it would change the fingerprint

    def __init__(self, dataset: Decoded, indices: Sequence[Any] | None) -> None:
        """Raises InvalidError, as `Decoded.decoding`."""
        self._decoding = dataset.decoding
        self.dataset = copy.copy(dataset)
        if indices is not None:
            self.indices = indices
        self.dataset.transform = None
        del self.dataset.decode

    def __len__(self) -> int:
        return len(self.dataset if self.indices is None else self.indices)

    def _index(self, index: int) -> Any:
        """In the dataset."""
        return index if self.indices is None else self.indices[index]

    def __getitem__(self, index: int) -> Any:
        data, *others = self.dataset.read(self._index(index))
        array = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        return self.dataset.sample(array, others)

    def decoded(self, index: int, sample: Any) -> Any:
        """The sample of the dataset itself."""
        if isinstance(sample, tuple):
            return (self._picture(index, sample[0]), *sample[1:])
        if isinstance(sample, dict):
            (file,) = (name for name, value in sample.items() if np.ndim(value))  # a label has no dimension
            return {**sample, file: self._picture(index, sample[file])}
        return self._picture(index, sample)

    def _picture(self, index: int, data: Any) -> Any:
        return self._decoding.picture(bytes(data), _Name(self.dataset, self._index(index)))

    def __repr__(self) -> str:
        return f"<files of {type(self.dataset).__name__}, {len(self)} samples>"


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
        self.classes = classes_in(self.root)
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
            raise FileNotFoundError(
                f"Found no valid file for the classes {', '.join(map(printable, empty))}. {hint}. Each folder counts as a class: remove "
                "folders that are no classes, or give allow_empty=True"
            )
        warn_of_odd_classes(self.root, self.classes, set(self.targets))

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[Any, ...]:
        """The bytes of the file of a sample, and the other values of the sample."""
        path, target = self.samples[index_of(index)]
        return bytes_of(path), self._target(target)

    def name(self, index: int) -> str:
        """The file of a sample, for errors."""
        return self.samples[index][0]

    def files(self) -> Files:
        """The files of all samples, for C."""
        if type(self).read is not Folder.read:
            raise UnsupportedError(f"{type(self).__name__} has a read of its own, which C cannot call: leave it out")
        return files_of(self, self.samples, Files.of)

    def __repr__(self) -> str:
        return f"Folder({os.fspath(self.root)!r}, {len(self)} pictures of {len(self.classes)} classes, {self.decode})"


def classes_in(root: str | os.PathLike[str]) -> list[str]:
    """The folders in a folder. Raises FileNotFoundError if there is none, in torchvision's words."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise FileNotFoundError(
            f"Couldn't find any class folder in {os.fspath(root)}. Pictures lie in folders inside it, one for each class, "
            "such as train/cat/1.jpg. Put pictures without classes into one such folder"
        )
    return classes


def warn_of_odd_classes(root: str | os.PathLike[str], classes: list[str], used: set[int]) -> None:
    """In the words of source/dir/labels.go. used: the numbers of classes that have files."""
    odd = [
        f"{printable(name)} (class {number}, {'hidden' if name.startswith('.') else 'no file'})"
        for number, name in enumerate(classes)
        if name.startswith(".") or number not in used
    ]
    if not odd:
        return
    more = f" and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
    warn_user(
        f"{printable(os.fsdecode(root))}: each folder counts as a class, as in torchvision's ImageFolder, also "
        f"{', '.join(odd[:_MOST_NAMED])}{more}; remove folders that are no classes"
    )
