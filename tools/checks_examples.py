"""Runs each program of examples/ as its first lines say, on real pictures, texts and sounds. `make test-examples`

A program must print what its docstring says, except the numbers, and the counts of hits must be right. The programs
run as processes, most of them in children of a process that has imported their packages: warm.py. What a program needs
and is not installed is the reason of a skip. The pictures are parts of photographs in the package scikit-image.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
import warnings
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import docs

sys.path.insert(0, str(Path(__file__).parents[1] / "python/tests"))
sys.path.insert(0, str(Path(__file__).parent))
from served import Server, until  # type: ignore[import-not-found,unused-ignore]
from warm import Done

from docs import Interpreters

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, SECONDS = ROOT / "examples", 300
OWN = ROOT / ".venv-examples/bin/python"  # with jax and a kernel for notebooks; it finds the packages of .venv as well
PYTHON = OWN if OWN.exists() else Path(sys.executable)
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "retina", "hubble_deep_field", "motorcycle_left", "ihc")
EACH = 12  # parts of a photograph
SAMPLES = len(PHOTOGRAPHS) * EACH

TESTED: dict[str, str] = {}  # a file of examples/ and the test that runs it
PIPES = "python/tests/pipes/test_examples_torch.py", "run("
ELSEWHERE = {  # a file, and the file and the words of its test
    "c/loader.c": ("cclient/ctest/run.sh", "$build/c/example-loader"),
    "c/watch.c": ("cclient/ctest/run.sh", "$build/c/example-watch"),
    "go/main.go": ("examples/go/main_test.go", "train("),
    "go/main_test.go": ("Makefile", "$(GO) list ./..."),
    **dict.fromkeys(("tars.py", "text_packing.py", "detection.py", "audio_clips.py", "languages.py"), PIPES),
    "README.md": ("Makefile", "tools/docs.py README.md python/README.md CONTRIBUTING.md docs examples"),
}


def example(*files: str, needs: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test of these files. It is skipped if one of these packages is missing."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        TESTED.update(dict.fromkeys(files, test.__name__))
        if missing := missing_packages(needs):
            pytest.mark.skip(reason=f"not installed: {', '.join(missing)}")(test)
        return test

    return mark


def missing_packages(needs: tuple[str, ...]) -> list[str]:
    code = "import sys, importlib.util as u; print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])"
    done = subprocess.run([PYTHON, "-c", code, *needs], capture_output=True, text=True, check=True)
    return done.stdout.split()


# ------------------------------------------------------------------------------------------------ data


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of several sizes, cut out of photographs. Each photograph is a class."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is missing")
    found = list(OWN.parents[1].glob("lib/python3*/site-packages/skimage/data/astronaut.png"))
    if not found:
        pytest.skip("the photographs of scikit-image are missing: run make setup-examples")
    root, dice = tmp_path_factory.mktemp("photos"), random.Random(1)
    for name in PHOTOGRAPHS:
        (file,) = (file for file in found[0].parent.glob(f"{name}.*"))
        photograph = image.open(file).convert("RGB")
        (root / name).mkdir()
        for k in range(EACH):
            width, height = dice.randint(140, 220), dice.randint(110, 180)
            left, top = dice.randrange(photograph.width - width), dice.randrange(photograph.height - height)
            part = photograph.crop((left, top, left + width, top + height))
            part.save(root / name / f"{k:02}.jpg", quality=90)
    return root


@pytest.fixture(scope="session")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded words: WAV files of Debian's package alsa-utils. Where it cannot be had, WAV files that are made here."""
    for folder in (ROOT / ".tools/alsa", Path("/usr/share/sounds/alsa")):
        if folder.is_dir():
            return folder
    warnings.warn("the recordings of alsa-utils are missing: the clips are made here, of noise", stacklevel=1)
    folder, dice = tmp_path_factory.mktemp("sounds"), random.Random(1)
    for k in range(9):
        with wave.open(str(folder / f"{k}.wav"), "wb") as file:
            file.setparams((1, 2, 48_000, 0, "NONE", ""))
            file.writeframes(dice.randbytes(2 * dice.randrange(30_000, 90_000)))
    return folder


# ------------------------------------------------------------------------------------------------ programs


@pytest.fixture(scope="module")
def interpreters(one_thread: None) -> Iterator[Interpreters]:
    made = Interpreters(PYTHON)
    yield made
    made.numpy.close()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of OpenMP wait by spinning, which takes long beside other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program finds a server or the network, and each has caches of files of its own."""
    monkeypatch.setenv("STOCACHED_SOCKETS_DIR", str(tmp_path / "sockets"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class Run:
    """Runs programs of examples/ and checks the form of what they print."""

    def __init__(self, interpreters: Interpreters, folder: Path) -> None:
        self.interpreters, self.folder = interpreters, folder

    def __call__(self, name: str, *arguments: object, needs: str | None = "torch") -> str:
        warm = self.interpreters.of(needs)
        return checked(name, warm.run(EXAMPLES / name, self.folder, os.environ, SECONDS, arguments))


@pytest.fixture
def run(interpreters: Interpreters, tmp_path: Path) -> Run:
    return Run(interpreters, tmp_path)


def checked(name: str, done: Done) -> str:
    """What the program has printed, which has the form that its docstring shows."""
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    text = ast.get_docstring(ast.parse((EXAMPLES / name).read_text()))
    assert text is not None
    _, _, shown = text.partition(" prints")
    said = [line.strip() for line in re.findall(r"^    .*$", shown, re.M)]
    assert said
    assert form(done.stdout.strip()) == form("\n".join(said)), done.stdout + done.stderr
    return done.stdout


def form(text: str) -> str:
    return re.sub(r"\d[\d.,]*", "#", text)


def counts(printed: str) -> list[tuple[int, int]]:
    """Hits and samples of each line."""
    found = re.findall(r"\b(\d+) of (\d+) samples\b", printed)
    assert len(found) == printed.count("\n"), printed
    return [(int(hits), int(samples)) for hits, samples in found]


def fills(printed: str, samples: int) -> bool:
    """Whether three epochs had all samples: the first loaded them, and the last found them."""
    first, second, third = counts(printed)
    # The first batches of the second epoch begin while the last ones of the first are loaded.
    assert (first, third) == ((0, samples), (samples, samples)), printed
    return second[1] == samples and second[0] > samples // 2


# ------------------------------------------------------------------------------------------------ tests


@example("imagenet.py", needs=("torch", "torchvision"))
def test_imagenet(run: Run, photos: Path) -> None:
    assert fills(run("imagenet.py", photos, photos, "--side", 32, "--size", "64MiB"), 2 * SAMPLES)


@example("served/classifier.py", "served/classifier.yaml", needs=("torch", "torchvision"))
def test_imagenet_with_a_server(run: Run, photos: Path, server: Server) -> None:
    parts = [f"{server.name}-{part}" for part in ("train", "val")]
    (server.folder / "imagenet").mkdir()
    for part in ("train", "val"):
        (server.folder / "imagenet" / part).symlink_to(photos)
    begin(server, (EXAMPLES / "served/classifier.yaml").read_text())
    assert fills(run("served/classifier.py", *parts, "--side", 32), 2 * SAMPLES)
    assert [server.reads(part) for part in parts] == [SAMPLES] * 2


# Python runs a file of this name in each process that it starts.
SITECUSTOMIZE = """
import atexit, pathlib, sys

@atexit.register
def look():
    for thread in pathlib.Path("/proc/self/task").iterdir():
        if "gloo" in (thread / "comm").read_text():
            print("a thread of gloo is alive while Python ends, and may abort it", file=sys.stderr)
"""


@example("ddp.py", needs=("torch",))
def test_ranks_load_each_sample_once(photos: Path, cache_name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    torchrun = [PYTHON, "-m", "torch.distributed.run"]
    command = [*torchrun, "--standalone", "--nproc-per-node", "2", EXAMPLES / "ddp.py", photos, "--name", cache_name]
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    printed = checked("ddp.py", done)
    assert "a thread of gloo" not in done.stderr
    assert fills(printed, SAMPLES) and printed.count("2 ranks") == 3
    assert counters(cache_name)["stored"] == SAMPLES


@example("lightning_trainer.py", needs=("torch", "lightning"))
def test_lightning(run: Run, photos: Path) -> None:
    trained, validated = counts(run("lightning_trainer.py", photos, needs="lightning"))
    # An epoch begins while the last samples of the one before are loaded, so some of these may be loaded again.
    assert SAMPLES < trained[0] <= 2 * SAMPLES and trained[1] == 3 * SAMPLES
    assert validated == (3 * SAMPLES, 3 * SAMPLES)


@example("accelerate_datasets.py", needs=("torch", "accelerate", "datasets"))
def test_accelerate_and_datasets(run: Run, photos: Path) -> None:
    assert fills(run("accelerate_datasets.py", photos), SAMPLES)


@example("jax_training.py", needs=("jax",))
def test_jax(run: Run, photos: Path) -> None:
    printed = run("jax_training.py", photos, needs=None)
    assert fills(printed, SAMPLES)
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[0] > losses[1] > losses[2], "it learns from the arrays on the device"


@example("served/train.py", "served/two_jobs.yaml", "c/fetch.c", needs=("torch",))
def test_two_jobs_read_each_file_once(run: Run, photos: Path, server: Server) -> None:
    (server.folder / "pictures").symlink_to(photos)
    begin(server, (EXAMPLES / "served/two_jobs.yaml").read_text())
    with ThreadPoolExecutor() as jobs:
        printed = list(jobs.map(lambda seed: run("served/train.py", server.name, "--seed", seed), (1, 2)))
    for job in printed:
        # The server reads ahead and another job reads too, so also the first epoch may hit.
        assert [samples for _, samples in counts(job)] == [SAMPLES] * 3 and counts(job)[2][0] == SAMPLES
    assert server.reads() == SAMPLES, "two jobs of three epochs have read each file once"
    done = subprocess.run([ROOT / "build/c/example-fetch", server.name, "3"], capture_output=True, text=True)
    assert re.match(rf"samples={SAMPLES} hits={SAMPLES} failed=0 ", done.stdout), done.stdout + done.stderr


@example("served/compose.yaml", needs=("torch", "yaml"))
def test_a_bucket_is_served_as_compose_says(
    run: Run, photos: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without containers: the storage, the server and the job with the settings of the Compose file."""
    import yaml  # type: ignore[import-untyped,import-not-found,unused-ignore]

    compose = yaml.safe_load((EXAMPLES / "served/compose.yaml").read_text())
    services = compose["services"]
    shutil.copytree(photos, tmp_path / "buckets/pictures")
    port = free_port()
    for name, value in {**services["storage"]["environment"], **services["stocached"]["environment"]}.items():
        monkeypatch.setenv(name, re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value))
    command = [word.replace(":7070", f"127.0.0.1:{port}") for word in services["storage"]["command"]]
    command[-1] = command[-1].replace("/buckets", str(tmp_path / "buckets"))
    storage = subprocess.Popen([ROOT / ".tools/versitygw", *command], stdout=subprocess.DEVNULL)
    try:
        (health,) = (word for word in services["storage"]["healthcheck"]["test"] if word.startswith("http"))
        until(lambda: storage.poll() is not None or answers(health.replace("localhost:7070", f"127.0.0.1:{port}")))
        endpoint = f"http://127.0.0.1:{port}"
        begin(server, compose["configs"]["server"]["content"].replace("http://storage:7070", endpoint))
        program, *arguments = services["train"]["command"][1:]
        assert services["train"]["volumes"] == [f".{program}:{program}:ro"]
        arguments = [word.replace("pictures", server.name) for word in arguments]
        assert fills(run(f"served{program}", *arguments), SAMPLES)
        assert server.reads() == SAMPLES <= server.metric("stocached_remote_requests_total")
    finally:
        storage.kill()
        storage.wait()


@example("first_steps.ipynb", needs=("nbclient", "ipykernel", "PIL"))
def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    stored = EXAMPLES / "first_steps.ipynb"
    subprocess.run(
        [PYTHON.with_name("jupyter-execute"), stored, f"--output={tmp_path}/executed.ipynb"],
        check=True,
        timeout=SECONDS,
    )
    assert printed_by(tmp_path / "executed.ipynb") == printed_by(stored)
    assert len(printed_by(stored)) == 6


def printed_by(notebook: Path) -> list[str]:
    """What each cell with code has printed. No cell has an output of another kind."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output.get("name") for output in outputs} == {"stdout"}, outputs
    return ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]


# ------------------------------------------------------------------------------------------------ moving here


def block_of_moving(word: str) -> str:
    """The block of docs/guides/moving.md that this file runs."""
    (found,) = (code for code in docs.blocks_by("tools/checks_examples.py", "docs/guides/moving.md") if word in code)
    return found


def program(interpreters: Interpreters, folder: Path, text: str, needs: tuple[str, ...]) -> str:
    """What this program prints, beside the library that the reader comes from."""
    if missing := missing_packages(needs):
        pytest.skip(f"not installed: {', '.join(missing)}")
    (folder / "program.py").write_text(text)
    done = interpreters.torch.run(folder / "program.py", folder, os.environ, SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


WEBDATASET = """
from pathlib import Path

import webdataset

files = sorted(Path(FOLDER).rglob("*.jpg"))
with webdataset.ShardWriter("train-%06d.tar", maxcount=8, verbose=0) as shards:
    for k, file in enumerate(files):
        shards.write({"__key__": f"{k:04}", "jpg": file.read_bytes(), "cls": k % 7})

pairs = list(THEIRS)
labels = sorted(int(label) for _, label in pairs)
BLOCK
ours = [batch for batch in loader]
loader.close()
assert len(pipe) == len(pairs) == len(files), (len(pipe), len(pairs), len(files))
assert sorted(int(k) for batch in ours for k in batch["cls"]) == labels

from stocached import source
source(files).map(lambda file: {"jpg": file.read_bytes(), "cls": 3}).write("written", format="tar", file_bytes="20KiB")
back = webdataset.WebDataset(sorted(map(str, Path("written").glob("*.tar"))), shardshuffle=False)
assert [(item["jpg"], item["cls"]) for item in back] == [(file.read_bytes(), b"3") for file in files]
print("the same")
"""


def test_shards_of_webdataset_stay_as_they_are(interpreters: Interpreters, photos: Path, tmp_path: Path) -> None:
    block = block_of_moving("webdataset.").replace("000099", f"{SAMPLES // 8 - 1:06}").replace("8GiB", "64MiB")
    (theirs,) = re.findall(r"^# was: (.*)$", block, re.M)
    text = WEBDATASET.replace("THEIRS", theirs).replace("BLOCK", block)
    text = text.replace("FOLDER", repr(str(photos)))
    assert program(interpreters, tmp_path, text, ("webdataset", "PIL")) == "the same\n"


BLOCKS = """
import numpy as np

CONVERTED = 40


def make(index):
    return {"image": np.full((3, 8, 8), index, np.uint8), "label": index}


if __name__ == "__main__":
    inputs, columns = list(range(CONVERTED)), {"image": "ndarray:uint8:3,8,8", "label": "int"}
    THEIRS
    BLOCK
    assert len(theirs) == len(dataset) == CONVERTED
    for index in range(CONVERTED):
        assert theirs[index]["label"] == dataset[index]["label"] == index
        assert np.array_equal(theirs[index]["image"], dataset[index]["image"])
    print("the same")
"""


@pytest.mark.parametrize("library", ["litdata", "streaming"])
def test_prepare_converts_as_litdata_and_streaming(library: str, interpreters: Interpreters, tmp_path: Path) -> None:
    block = block_of_moving("litdata.").replace("processes=8", "processes=2")
    (optimize,) = re.findall(r"^# was: (litdata\.optimize.*)$", block, re.M)
    ((write, writer),) = re.findall(r"^# was: (for sample .*?) +# writer = (.*)$", block, re.M)
    (reads,) = re.findall(rf"# was: .*?({library}\.StreamingDataset\([^)]*\))", block)
    if library == "litdata":  # one of its workers writes the samples in order
        lines = [optimize.replace("make,", "make, num_workers=1, start_method='fork',")]
    else:
        lines = [f"with {writer} as writer:", f"    {write}"]
    lines = [f"import {library}", *lines, f"theirs = {reads}"]
    text = BLOCKS.replace("THEIRS", "\n    ".join(lines).replace('"out"', '"theirs"'))
    text = text.replace("BLOCK", block.replace("\n", "\n    "))
    (tmp_path / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        patch.setenv("TMPDIR", str(tmp_path / "temporary"))
        printed = program(interpreters, tmp_path, text, (library,))
    assert printed.endswith("the same\n")


def test_every_example_has_a_test_and_a_line_in_the_index() -> None:
    files = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*") if file.is_file()}
    files = {name for name in files if "__pycache__" not in name and ".ipynb_checkpoints" not in name}
    assert files == {*TESTED, *ELSEWHERE}
    for name, (where, words) in ELSEWHERE.items():
        assert words in (ROOT / where).read_text(), f"{where} does not run {name}"
    index = (EXAMPLES / "README.md").read_text()
    assert not [name for name in files - {"README.md", "go/main_test.go"} if f"]({name})" not in index]


# ------------------------------------------------------------------------------------------------ servers


@pytest.fixture
def cache_name() -> Iterator[str]:
    name = f"examples-{os.getpid()}-{os.urandom(4).hex()}"
    yield name
    for part in ("", "-train", "-val"):
        subprocess.run([ROOT / "bin/stocached", "rm", name + part], capture_output=True)


@pytest.fixture
def server(cache_name: str, tmp_path: Path) -> Iterator[Server]:
    made = Server(Path("/dev/shm"), tmp_path / "sockets")
    made.name = cache_name
    yield made
    made.close()


def begin(server: Server, configuration: str) -> None:
    """Starts the server with the configuration of an example. The names of its caches begin with that of this test."""
    text, caches = re.subn(r"(?<=- name: )pictures(?=\n|-)", server.name, configuration)
    assert caches
    (server.folder / "config.yaml").write_text(text)
    server.start()


def counters(name: str) -> dict[str, Any]:
    command = [str(ROOT / "bin/stocached"), "stats", name, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
