"""stocached.image.convert: ImageFolder and the transforms of torchvision."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

import numpy as np
import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from pictures import encoded, folder_of, picture  # noqa: E402
from torchvision import datasets  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

import stocached.torch  # noqa: E402
from stocached import InvalidError, image  # noqa: E402
from stocached._loader import worker_choice  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMAL = 2 / 255 / min(STD)  # what 2 of 255 are after Normalize


@pytest.fixture
def root(tmp_path):
    return folder_of(tmp_path / "train", {"cat": 5, "ant": 4, "bee": 6}, (320, 280))


@pytest.mark.parametrize(
    "kind", ["as it is", "nested", "uppercase", "other files", "empty class", "no class", "missing"]
)
def test_folder_is_torchvisions(root, kind):
    if kind == "nested":
        folder_of(root / "ant" / "more", {"deep": 2, "a": 1})
    elif kind == "uppercase":
        (root / "ant" / "Z.JPEG").write_bytes(encoded(picture(5, 5)))
        (root / "Zebra").mkdir()
        (root / "Zebra" / "0.PNG").write_bytes(encoded(picture(5, 5), "PNG"))
    elif kind == "other files":
        (root / "ant" / "notes.txt").write_text("no picture")
        (root / "README").write_text("no class")
    elif kind == "empty class":
        (root / "dog").mkdir()
    elif kind == "no class":
        root = root / "ant"
    elif kind == "missing":
        root = root / "none"
    made, errors = [], []
    for build in (datasets.ImageFolder, image.Folder):
        try:
            made.append(build(root))
        except OSError as error:
            errors.append(error)
    assert len(made) + len(errors) == 2
    if errors:
        assert [type(error) for error in errors] == [FileNotFoundError] * 2
        theirs, ours = (str(error).strip() for error in errors)
        assert ours == theirs if kind == "missing" else ours.startswith(theirs)  # ours also says what to do
        return
    theirs, ours = made
    for name in ("root", "classes", "class_to_idx", "samples", "imgs", "targets"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for k in (0, len(theirs) - 1):
        assert np.abs(np.asarray(theirs[k][0]).astype(int) - ours[k][0]).max() <= 2
        assert theirs[k][1] == ours[k][1]


def test_the_loader_of_a_converted_dataset_says_why_its_workers_are_processes(root, caplog, monkeypatch):
    monkeypatch.setattr(worker_choice, "_said", set())
    before = datasets.ImageFolder(root, v1.Compose([v1.RandomCrop(24), v1.ToTensor()]), target_transform=operator.neg)
    dataset, augment = image.convert(before)
    for _ in range(2):
        stocached.torch.DataLoader(dataset, 4, num_workers=2, augment=augment, size="8MiB").close()
    assert len(caplog.messages) == 1
    assert "target_transform=<built-in function neg> is a function of Python: change labels" in caplog.messages[0]


def test_folder_with_a_filter(root):
    even = lambda path: int(path[-7:-4]) % 2 == 0  # noqa: E731
    assert image.Folder(root, is_valid_file=even).samples == datasets.ImageFolder(root, is_valid_file=even).samples


IMAGENET = {
    "v1": v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.ToDtype(torch.uint8, scale=True),
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.ToPureTensor(),
        ]
    ),
}


@pytest.mark.parametrize("version", IMAGENET)
def test_imagenet_training(root, version):
    theirs = datasets.ImageFolder(root, IMAGENET[version], target_transform=operator.neg)
    converted = image.convert(theirs)
    dataset, augment = converted
    assert augment == image.Compose(
        [
            image.RandomResizedCrop((224, 224)),
            image.RandomHorizontalFlip(),
            image.ToDtype(augment.transforms[2].dtype, scale=True),
            image.Normalize(MEAN, STD),
        ]
    )
    pixels, label = dataset[5]
    assert pixels.dtype == np.uint8
    assert min(pixels.shape[1:]) == 256 != max(pixels.shape[1:])
    assert label == theirs[5][1]
    made, _ = augment(dataset[5], np.random.default_rng(0))
    assert made.shape == tuple(theirs[5][0].shape)
    assert made.dtype == np.float32
    assert "short side of 256" in converted.explanation
    assert "short_side=None" in converted.explanation
    whole = image.convert(theirs, short_side=None)
    assert whole.dataset[5][0].shape == (3, *np.asarray(datasets.folder.default_loader(theirs.samples[5][0])).shape[:2])
    assert "as large as the file. The default is a short side of 256 pixels." in whole.explanation
    for kind, some in (
        (stocached.Loader, dataset),
        (stocached.torch.DataLoader, torch.utils.data.Subset(dataset, range(15))),
    ):
        with pytest.raises(Exception, match=r"shapes|equal size") as raised:  # without augment
            list(kind(some, 15))
        assert "augment = image.convert(...)" in f"{raised.value}{getattr(raised.value, '__notes__', '')}"


@pytest.mark.parametrize(
    ("size", "short"), [(224, 256), (32, 37), (7, 8), (64, 74), ((288, 384), 330), ((384, 288), 330)]
)
def test_the_default_is_a_little_larger_than_the_result(tmp_path, size, short):
    """8/7 of the short side, as torchvision's Resize(256) and CenterCrop(224). Small pictures stay small."""
    root = folder_of(tmp_path / "train", {"cat": 2}, (96, 80))
    theirs = datasets.ImageFolder(root, v1.Compose([v1.RandomResizedCrop(size), v1.ToTensor()]))
    converted = image.convert(theirs)
    assert converted.dataset.decode.short_side == short
    assert min(converted.dataset[0][0].shape[1:]) == short
    assert f"with a short side of {short} pixels, also if the file is smaller. " in converted.explanation
    assert image.convert(theirs, 500).dataset.decode.short_side == 500
    assert image.convert(theirs, 1).dataset.decode.short_side == short
    files = image.convert(theirs, None)
    assert files.dataset[0][0].shape[1:] in ((96, 80), (80, 96))
    assert f"as large as the file. The default is a short side of {short} pixels." in files.explanation


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_imagenet_validation_gives_torchvisions_values(root, version):
    module = {"v1": v1, "v2": v2}[version]
    last = [v1.ToTensor()] if version == "v1" else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    theirs = datasets.ImageFolder(
        root, module.Compose([module.Resize(256), module.CenterCrop(224), *last, module.Normalize(MEAN, STD)])
    )
    converted = image.convert(theirs)
    dataset, augment = converted
    assert dataset.transform is None
    assert (dataset.decode.size, dataset.decode.short_side) == ((224, 224), 256)
    assert "RandomResizedCrop" not in converted.explanation
    for k in range(len(theirs)):
        assert dataset[k][0].dtype == np.uint8
        (made, label), (expected, target) = augment(dataset[k]), theirs[k]
        assert label == target
        assert np.abs(made - expected.numpy()).max() <= NORMAL


@pytest.mark.parametrize("name", ["ResNet18_Weights", "ViT_B_16_Weights", "EfficientNet_B0_Weights"])
def test_the_steps_of_a_models_weights(root, name):
    """ImageClassification, which torchvision's models have for validation, also bicubic ones."""
    preset = getattr(pytest.importorskip("torchvision.models"), name).DEFAULT.transforms()
    theirs = datasets.ImageFolder(root, preset)
    dataset, augment = image.convert(theirs)
    assert dataset.decode.size == (*preset.crop_size, *preset.crop_size)
    assert dataset.decode.short_side == preset.resize_size[0]
    assert dataset.decode.filter == preset.interpolation.value
    for k in range(3):
        made, expected = augment(dataset[k])[0], theirs[k][0].numpy()
        assert np.abs(made - expected).max() <= NORMAL


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_same_boxes_give_the_same_values(root, module):
    """A box that is certain, and all steps that have an equal."""
    first = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]
    last = first if module is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    theirs = datasets.ImageFolder(
        root,
        torch.nn.Sequential(
            module.RandomResizedCrop((60, 80), scale=(1, 1), ratio=(3, 3)),
            module.Resize(50),
            module.RandomHorizontalFlip(1.0),
            module.ColorJitter(brightness=(1.2, 1.2)),
            *last,
            module.Normalize(MEAN, STD),
            module.RandomErasing(p=0.0),
        )
        if module is v2
        else v1.Compose(
            [
                v1.RandomResizedCrop((60, 80), scale=(1, 1), ratio=(3, 3)),
                v1.Compose([v1.Resize(50), v1.RandomHorizontalFlip(1.0)]),
                v1.ColorJitter(brightness=(1.2, 1.2)),
                *last,
                v1.Normalize(MEAN, STD),
                v1.RandomErasing(p=0.0),
            ]
        ),
    )
    dataset, augment = image.convert(theirs, short_side=None)
    for k in range(len(theirs)):
        assert np.abs(augment(dataset[k])[0] - theirs[k][0].numpy()).max() <= 3 * NORMAL


def test_small_pictures_with_padding(root):
    """The usual steps for CIFAR: the cache keeps whole pictures."""
    for module in (v1, v2):
        theirs = datasets.ImageFolder(
            root,
            module.Compose(
                [module.RandomCrop(32, padding=(1, 2), fill=7), module.RandomHorizontalFlip(), v1.ToTensor()]
            ),
        )
        converted = image.convert(theirs)
        crop = converted.augment.transforms[0]
        assert (crop._padding, crop._fill) == ((1, 2, 1, 2), [7, 7, 7])
        assert converted.dataset.decode == image.Decode(layout="chw")
        assert "short side" not in converted.explanation


def test_steps_that_are_cached_and_more(root):
    theirs = datasets.ImageFolder(
        root, v1.Compose([v1.Resize((100, 90)), v1.CenterCrop(80), v1.RandomCrop(64), v1.ToTensor()])
    )
    dataset, augment = image.convert(theirs)
    assert dataset[0][0].shape == (3, 80, 80)
    assert augment(dataset[0])[0].shape == (3, 64, 64)
    nothing = image.convert(datasets.ImageFolder(root))
    assert nothing.augment is None
    assert nothing.dataset[0][0].ndim == 3
    half = image.convert(torch.utils.data.Subset(theirs, [3, 1]))
    assert len(half.dataset) == 2
    assert np.array_equal(half.dataset[1][0], dataset[1][0])
    assert "CenterCrop" in half.explanation


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([v1.RandomRotation(30), v1.ToTensor()], r"RandomRotation\(degrees=\[-30\.0, 30\.0\].* has no equal"),
        ([v2.RandomAffine(30)], "RandomAffine.* has no equal"),
        ([v1.Lambda(lambda picture: picture)], "Lambda.* has no equal"),
        ([len], "built-in function len.* has no equal"),
        ([v1.RandomApply([v1.ColorJitter(0.1)])], "RandomApply.* has no equal"),
        ([v1.Resize(32, interpolation=v1.InterpolationMode.NEAREST)], "Resize.* has no equal.*bilinear and bicubic"),
        ([v1.PILToTensor(), v1.Resize(32, antialias=False)], "Resize.* has no equal.*antialiased"),
        ([v1.RandomCrop(32, padding=3, padding_mode="reflect")], "RandomCrop.* has no equal.*constant"),
        ([v1.ToTensor(), v1.Resize(32)], "Resize.* has no equal.*: it gets floats.*; put it before ToTensor, ToDtype"),
        ([v2.ToDtype({torch.Tensor: torch.float32}, scale=True)], "ToDtype.* has no equal"),
        ([v2.ToDtype(torch.int64)], "ToDtype.* has no equal"),
        ([v2.RandomCrop(9, padding=3, fill={torch.Tensor: 3})], "RandomCrop.* has no equal"),
        ([v1.RandomCrop(9, fill=0.5)], r"RandomCrop.* has no equal.*: fill=0\.5 is not a whole number of 0 to 255"),
        ([v2.Resize(None, max_size=100)], "Resize.* has no equal.*: size=None: give the short side"),
        ([v1.Normalize((0.5,), (0,))], "Normalize.* has no equal.*std not 0"),
        (
            [v2.ToImage(), v2.ToDtype(torch.float64)],
            "ToDtype.* has no equal.*: dtype=torch.float64: pictures are uint8, ",
        ),
        ([v2.ToDtype(torch.float32, scale=True), v2.ToImage()], "ToDtype.*: it does nothing with pictures of Pillow"),
        ([v1.ToTensor(), v2.ToDtype(torch.uint8, scale=True)], "ToDtype.* has no equal.*: ToDtype makes float32"),
        (
            [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.ConvertImageDtype(torch.uint8)],
            r"ConvertImageDtype.* has no equal",
        ),
        ([v1.ToTensor(), v1.ToPILImage(), v1.PILToTensor()], r"ToPILImage.* has no equal.*whole numbers of .*"),
        ([v1.PILToTensor(), v1.RandomErasing(p=0.01, value="random")], "RandomErasing.* has no equal.*normal numbers"),
        (
            [v1.PILToTensor(), v1.RandomErasing(p=0.01, value=300)],
            "RandomErasing.* has no equal.*value 300 is no uint8",
        ),
        ([v1.Normalize(MEAN, STD), v1.ToTensor()], "Normalize.* has no equal.*: Normalize needs a picture of float32"),
        (
            [v1.PILToTensor(), v2.ToDtype(torch.bfloat16), v1.Normalize(MEAN, STD)],
            "Normalize.* has no equal.*float16: put",
        ),
        ([v1.PILToTensor(), v2.ToDtype(torch.bfloat16), v2.ToDtype(torch.float32)], "ToDtype.* has no equal"),
    ],
    ids=str,
)
def test_errors_name_the_step(root, steps, message):
    with pytest.raises(InvalidError, match=f"^convert: .*{message}") as raised:
        image.convert(datasets.ImageFolder(root, v1.Compose(steps)))
    assert 'layout="chw"), for results of 224 pixels, and give all steps after it to the loader' in str(raised.value)


@pytest.mark.parametrize("short_side", ["256", 0, 256.0, 65501])
def test_short_side_must_be_a_side(root, short_side):
    with pytest.raises(InvalidError, match=f"^short_side={short_side!r} is not a whole number of 1 to 65500$"):
        image.convert(datasets.ImageFolder(root), short_side)


def test_datasets_of_this_package(root, tmp_path):
    """Their transforms are converted too, from the pictures that the dataset decodes."""
    steps = v2.Compose([v2.ToImage(), v2.CenterCrop(60), v2.ToDtype(torch.float32, scale=True)])
    for ours in (image.Folder(root, size=(70, 80), transform=steps), image.Folder(root, transform=steps)):
        dataset, augment = image.convert(ours)
        assert dataset.decode.but(layout="hwc", size=None) == image.Decode()
        for k in range(3):
            assert np.abs(augment(dataset[k])[0] - ours[k][0].numpy()).max() <= 2 / 255
            assert dataset[k][1] == ours[k][1]
        assert ours.transform is steps, "the user's dataset stays"
    boxes = v1.Compose([v1.ToPILImage(), v1.RandomResizedCrop(24), v1.ToTensor()])
    assert "as large as the file" not in image.convert(image.Folder(root, size=50, transform=boxes)).explanation
    small = image.convert(image.Folder(root, short_side=50, transform=boxes))
    assert small.dataset.decode == image.Decode(short_side=50, layout="chw")
    assert image.convert(image.Folder(root, transform=boxes)).dataset.decode.short_side == 28
    steps = image.Compose([image.Decode(20)])
    plain = image.Folder(root, steps)
    assert image.convert(plain) == (plain, None)
    for wrong in (image.Folder(root, layout="chw", transform=boxes), image.Folder(root, len)):
        with pytest.raises(InvalidError, match="^convert: "):
            image.convert(wrong)


@dataclass
class Served:
    """A dataset whose samples come from a server."""

    dtype: str
    shape: tuple[int, ...]
    transform: object
    served = True

    def blank(self):
        return {"label": 0, "image": np.zeros(self.shape, self.dtype)}


def test_steps_after_a_served_cache_begin_with_its_dtype():
    grey = v1.Compose([v1.ConvertImageDtype(torch.float32), v1.Normalize((0.5,), (0.2,))])
    assert len(image.convert(Served("uint8", (40, 30, 1), grey)).augment.transforms) == 2
    normal = v1.Normalize(MEAN, STD)
    for shape in ((3, 40, 30), (40, 30, 3)):
        assert image.convert(Served("float32", shape, normal)).augment.transforms == [image.Normalize(MEAN, STD)]
        with pytest.raises(InvalidError, match="^convert: Normalize.* has no equal.*: Normalize needs a picture of"):
            image.convert(Served("uint8", shape, normal))


TO_CONVERT = {
    "ImageFolder": lambda root, steps: datasets.ImageFolder(root, steps),
    "Folder": lambda root, steps: image.Folder(root, v1.Compose([v1.ToPILImage(), steps])),
    "a Subset": lambda root, steps: torch.utils.data.Subset(datasets.ImageFolder(root, steps), [1, 0]),
}


@pytest.mark.parametrize("kind", TO_CONVERT)
def test_the_loader_says_once_that_convert_makes_it_native(root, kind, monkeypatch, caplog):
    """In one line. What it says, works."""
    from stocached.torch import DataLoader

    monkeypatch.setattr(worker_choice, "_said", set())
    steps = v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor()])
    theirs = TO_CONVERT[kind](root, steps)
    for _ in range(2):
        assert DataLoader(theirs, 2, num_workers=2).worker == "process"
    (line,) = caplog.messages
    assert re.fullmatch(r"workers are processes, .*: transform= is of torchvision; .*convert\(dataset\).*", line)
    with pytest.raises(InvalidError, match=r'^worker="native": transform= is of torchvision; .*convert'):
        DataLoader(theirs, 2, num_workers=2, worker="native")
    dataset, augment = image.convert(theirs)
    loader = DataLoader(dataset, 2, num_workers=2, size="8MiB", augment=augment)
    assert loader.worker == "native"
    assert next(iter(loader))[0].shape == (2, 3, 24, 24)
    loader.close()
    assert len(caplog.messages) == 1


def test_the_loader_says_nothing_where_convert_cannot(root, monkeypatch, caplog):
    from stocached.torch import DataLoader

    class Own(datasets.ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)

    monkeypatch.setattr(worker_choice, "_said", set())
    flip = v1.Compose([v1.RandomVerticalFlip(), v1.ToTensor()])
    known = v1.Compose([v1.Resize((20, 20)), v1.ToTensor()])
    for theirs in (datasets.ImageFolder(root, flip), Own(root, known), datasets.ImageFolder(root, len)):
        assert DataLoader(theirs, 2, num_workers=2).worker == "process"
    assert caplog.messages == []


def test_datasets_that_are_no_image_folder(root):
    class Own(datasets.ImageFolder):
        def __getitem__(self, index):
            return 0

    def loader(path):
        return 0

    for wrong in (Own(root), datasets.ImageFolder(root, loader=loader), datasets.FakeData(), [1]):
        with pytest.raises(InvalidError, match="is no ImageFolder"):
            image.convert(wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_converted_in_both_torch_loaders(root, workers):
    theirs = datasets.ImageFolder(root, v1.Compose([v1.RandomResizedCrop(64), v1.ToTensor(), v1.Normalize(MEAN, STD)]))
    dataset, augment = image.convert(theirs, short_side=72)
    torch.manual_seed(1)
    ours = stocached.torch.DataLoader(dataset, 4, shuffle=True, num_workers=workers, size="16MiB", augment=augment)
    for _ in range(2):
        labels = []
        for pixels, some in ours:
            assert pixels.shape[1:] == (3, 64, 64)
            assert pixels.dtype == torch.float32
            labels += some.tolist()
        assert sorted(labels) == dataset.targets
    assert ours.stats().hits >= len(dataset)
    ours.close()
    plain = image.Folder(root, image.Compose([image.Decode(layout="chw", short_side=72), *augment.transforms]))
    for pixels, _ in torch.utils.data.DataLoader(plain, 4, num_workers=workers):
        assert pixels.shape[1:] == (3, 64, 64)
