"""Tests of the scripts that other tests rely on: what they count, and what they accept."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import failures
import mutations
import stages
import warm
from release import debian, made, native
from website import stage

import docs


def counted(text: str, status: int = 0) -> tuple[int, int, int, list[str]]:
    stage = stages.Stage("test")
    stage.count(text.splitlines(), status)
    return stage.passed, stage.failed, stage.skipped, stage.skips


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/x (0.00s)\nPASS\nok  \tmodule\t0.2s",
            (2, 0, 0, []),
        ),
        (
            "    a_test.go:9: no cgroup here\n--- SKIP: TestB (0.00s)\n--- FAIL: TestC (1.00s)",
            (0, 1, 1, ["TestB: a_test.go:9: no cgroup here"]),
        ),
        (
            "SKIPPED [2] tests/test_x.py:4: torch is missing\n=== 3 passed, 2 skipped in 0.10s ===",
            (3, 0, 2, ["tests/test_x.py:4: torch is missing"]),
        ),
        ("== 1 failed, 3 passed, 1 warning in 82.78s (0:01:22) ==", (3, 1, 0, [])),
        ("1 error in 0.10s", (0, 1, 0, [])),
        ("12 passed, 0 failed, 1 skipped\nslots: 4 passed over", (12, 0, 1, [])),
        (
            "test-api: 20 passed, 0 failed, 1 skipped\nSKIPPED [1] perf: no counters here",
            (20, 0, 1, ["perf: no counters here"]),
        ),
        ("a linter that says nothing", (1, 0, 0, [])),
    ],
)
def test_results_are_counted(text: str, expected: tuple[int, int, int, list[str]]) -> None:
    assert counted(text) == expected


def test_a_status_that_no_line_explains_is_a_failure() -> None:
    assert counted("--- PASS: TestA (0.00s)\npanic: out of memory", status=2) == (1, 1, 0, [])
    assert counted("", status=1) == (0, 1, 0, [])


GO = """\
=== RUN   TestA
    a_test.go:7: it is 3,
        want 4
=== RUN   TestA/sub
    a_test.go:8: first
    a_test.go:9: second
    a_test.go:9: third
    a_test.go:10: fourth
=== NAME  TestA
    a_test.go:12: the log:
        nothing
--- FAIL: TestA (0.00s)
    --- FAIL: TestA/sub (0.00s)
=== RUN   TestB
=== RUN   TestB/inner
    a_test.go:20: fine
--- FAIL: TestB (0.10s)
    --- FAIL: TestB/inner (0.10s)
FAIL
FAIL\tgithub.com/stocached/stocached/cache\t0.2s
"""

HANGS = """\
panic: test timed out after 4m0s
\trunning tests:
\t\tTestHang (3m58s)
\t\tTestHang/inner (3m58s)

goroutine 1 [chan receive]:
testing.(*T).Run(0x1, {0x2?, 0x0?}, 0x3)
\t/usr/local/go/src/testing/testing.go:2109 +0x4e5
main.main()
\t_testmain.go:52 +0x9b

goroutine 17 [chan receive]:
testing.(*T).Run(0x1, {0x2?, 0x4?}, 0x5)
\t/usr/local/go/src/testing/testing.go:2109 +0x4e5
github.com/stocached/stocached/server.TestHang(0x6?)
\t/source/server/x_test.go:5 +0x26

goroutine 18 [select, 3 minutes]:
net.(*conn).Read(...)
\t/usr/local/go/src/net/net.go:1
github.com/stocached/stocached/server.(*Server).drain(0x1)
\t/source/server/drain.go:206 +0x85
github.com/stocached/stocached/server.TestHang.func1(0x2?)
\t/source/server/x_test.go:5 +0x6f
created by testing.(*T).Run in goroutine 17
\t/usr/local/go/src/testing/testing.go:2101 +0x4c5

goroutine 19 gp=0x1 m=nil [sleep]:
github.com/stocached/stocached/server.wait()
\t/source/server/wait.go:7 +0x26

goroutine 20 [sleep]:
github.com/stocached/stocached/server.wait()
\t/source/server/wait.go:7 +0x26
FAIL\tgithub.com/stocached/stocached/server\t240.025s
FAIL
"""


def told(text: str) -> list[str]:
    return failures.failures(text.splitlines())


def test_each_failed_test_is_told_with_its_message() -> None:
    assert told(GO) == [
        "cache TestA (0.00s)",
        "  a_test.go:7: it is 3, | want 4",
        "  a_test.go:12: the log: | nothing",
        "cache TestA/sub (0.00s)",
        "  a_test.go:8: first",
        "  a_test.go:9: second",
        "  ... (1 more)",
        "  a_test.go:10: fourth",
        "cache TestB/inner (0.10s)",
        "  a_test.go:20: fine",
    ]
    assert told("x.c:3: not so: a\nok   fine\nx.c:4: not so: b\nFAIL broken\nx: 1 passed, 1 failed, 0 skipped") == [
        "FAIL broken",
        "  x.c:4: not so: b",
    ]
    hung = "== test-x\nok   first\nok   second\nbuild/c/test-x: exit status 124\n== test-y\nok   third"
    assert told(hung) == ["build/c/test-x: exit status 124", "  ok   first", "  ok   second"]
    summary = "FAILED tests/test_a.py::test_b - AssertionError: 3"
    assert told(
        f"tests/test_a.py F\n==== short test summary info ====\n{summary}\n== 1 failed, 3 passed in 2.7s =="
    ) == [summary]


def test_a_hang_is_told_with_the_tests_that_ran_and_our_goroutines() -> None:
    assert told("=== RUN   TestHang\n=== RUN   TestHang/inner\n" + HANGS) == [
        "  goroutine [select, 3 minutes] server.(*Server).drain (drain.go:206) < server.TestHang.func1 (x_test.go:5)",
        "  2 goroutines [sleep] server.wait (wait.go:7)",
        "server panic: test timed out after 4m0s; running: TestHang/inner (3m58s)",
    ]


def test_a_failure_without_tests_is_told_by_its_complaints_or_last_lines() -> None:
    assert told("cc -o x x.c\nx.c:7:3: error: no such thing\nmake: *** [Makefile:3: x] Error 1") == [
        "x.c:7:3: error: no such thing"
    ]
    assert told("\n".join(f"line {k}" for k in range(9))) == [f"line {k}" for k in range(4, 9)]
    assert told("") == []
    long = told("x" * 1000)
    assert len(long) == 1 and len(long[0]) == failures.WIDTH


def ran(folder: Path, makefile: str, *stages_: str) -> tuple[int, str]:
    (folder / "Makefile").write_text(makefile)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        [sys.executable, stages.__file__, *stages_],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_all_stages_run_and_one_failure_is_told(tmp_path: Path) -> None:
    makefile = "good:\n\t@echo '2 passed, 0 failed'\nbad:\n\t@echo why it broke; exit 3\n"
    for names, failed in (["bad", "good"], 1), (["good"], 0):
        status, text = ran(tmp_path, makefile, *names)
        assert (status, text.splitlines()[-1]) == (failed, f"2 passed, {failed} failed, 0 skipped")
        speed = r"^\d+ s, \d+ processor seconds\. .* take [1-9]\d* ms here while all \d+ processors are busy\.$"
        assert re.search(speed, text, re.M)
        assert ("why it broke" in text) == bool(failed)
        if failed:
            table, below = text.split("passed  failed  skipped", 1)
            assert "why it broke" in table and "failed in bad:\n  why it broke\n" in below


ONCE = "\t@[ -e {0} ] || {{ touch {0}; echo '=== RUN   TestA'; echo '{1}'; echo '--- PASS: TestB (0.0s)'; echo '--- FAIL: TestA (0.0s)'; exit 1; }}\n"


def test_a_stage_that_fails_once_runs_again_alone(tmp_path: Path) -> None:
    passes = "\t@echo '--- PASS: TestA (0.0s)'; echo '--- PASS: TestB (0.0s)'; echo $$PYTEST_ADDOPTS\n"
    status, text = ran(tmp_path, "test-go:\n" + ONCE.format("went", "    a_test.go:1: late") + passes, "test-go")
    assert status == 0 and text.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"
    assert "== test-go again, alone" in text
    assert "unsteady, passed when run again alone, in test-go:\n  TestA (0.0s)\n    a_test.go:1: late\n" in text
    assert "--last-failed" in (tmp_path / "build/logs/test-go-again.log").read_text()


@pytest.mark.parametrize(
    ("stage", "said"),
    [("test-stress", "why"), ("test-go", "WARNING: DATA RACE"), ("test-go", "panic: nil map")],
)
def test_no_second_run_hides_a_race_or_a_crash(tmp_path: Path, stage: str, said: str) -> None:
    status, text = ran(tmp_path, f"{stage}:\n" + ONCE.format("went", said), stage)
    assert status == 1 and "again, alone" not in text and "1 failed" in text.splitlines()[-1]


def test_what_fails_twice_or_in_many_tests_fails(tmp_path: Path) -> None:
    status, text = ran(tmp_path, "test-go:\n\t@echo '--- FAIL: TestA (0.0s)'; exit 1\n", "test-go")
    assert (status, text.splitlines()[-1]) == (1, "0 passed, 1 failed, 0 skipped")
    assert "== test-go again, alone" in text
    many = "".join(f"--- FAIL: Test{k} (0.0s)\\n" for k in range(stages.MOST_AGAIN + 1))
    status, text = ran(tmp_path, f"test-go:\n\t@printf -- '{many}'; exit 1\n", "test-go")
    assert status == 1 and "again, alone" not in text


def test_lanes_run_beside_each_other_and_each_in_its_order(tmp_path: Path) -> None:
    # first and beside wait for each other; late reads the file of first
    wait = "\t@touch {0}-began; for k in $$(seq 600); do [ ! -e {1}-began ] || exit 0; sleep 0.1; done; exit 1\n"
    makefile = "first:\n" + wait.format("first", "beside") + "beside:\n" + wait.format("beside", "first")
    makefile += "late:\n\t@test -e first-began && touch late-began\nlast:\n\t@test -e late-began; exit 3\n"
    status, text = ran(tmp_path, makefile, "first,late+beside", "last")
    assert status == 1
    rows = [line.split()[:2] for line in text.split("seconds\n", 1)[1].splitlines() if line]
    assert rows[1:5] == [["first", "pass"], ["late", "pass"], ["beside", "pass"], ["last", "FAIL"]]
    assert "   last failed with status 2" in text


def test_examples_are_found_with_their_output(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "text\n```python run\nprint(1)\n```\n```text output\n1\n```\n```sh\nnot run\n```\n```python torch\nimport torch\n```\n[a](page.md) [b](gone.md)\n"
    )
    first, second = docs.examples(document)
    assert (first.language, first.code, first.output, first.line) == ("python", "print(1)\n", "1\n", 2)
    assert second.needs == "torch" and second.output is None


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("1\n2", "1\n2\n", True),
        ("1", "2", False),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("took ... s", "took 1.2 s", True),
        ("took ... s", "took 1.2 h", False),
        ("1", "1\n2", False),
    ],
)
def test_output_is_compared(expected: str, printed: str, same: bool) -> None:
    assert docs.matches(expected, printed) is same


def test_a_wrong_example_fails(tmp_path: Path) -> None:
    python = docs.Interpreters()
    for code, output, wrong in (
        ("echo a", "a\n", None),
        ("echo a", "b\n", "printed"),
        ("echo a; false", None, "exit status 1"),
    ):
        example = docs.Example(tmp_path / "page.md", 1, "sh", None, code, output)
        result = docs.run(example, tmp_path, python)
        assert (result is None) if wrong is None else (result is not None and wrong in result)
    python.numpy.close()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```sh\nls\n```\n", "does not say who runs it"),
        ("```sh by gone.py\nls\n```\n", "does not name"),
        ("```sh by mentions.py\nls\n```\n", "does not name"),
        ("```sh by reads.py\nls\n```\n", None),
        ("text:\n\n    make test ARGS=1\n", "has no fence"),
        ("```\nstocached ls\n```\n", "has no fence"),
        ("```\noffset  bytes\n```\n\n    x = f(y)\n\n```text\nstocached ls\n```\n", None),
        ("<!-- run as\n\n    import os\n...\n-->\n```sh run\nls\n```\n\n    import os\n", "has no fence"),
    ],
)
def test_a_block_that_nobody_runs_is_found(
    text: str, wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "mentions.py").write_text("# As page.md says\n")
    (tmp_path / "reads.py").write_text('open(TOP + "/page.md")\n')
    document = tmp_path / "page.md"
    document.write_text(text)
    found = list(docs.untried(document))
    assert len(found) == (wrong is not None)
    assert all(wrong is not None and wrong in each for each in found)


def test_a_part_of_an_example_is_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/a.py").write_text("def f():\n    x = 1\n    return x + 1\n")
    document = tmp_path / "page.md"
    for name, part, fails in (
        ("a.py", "x = 1\nreturn x + 1", False),
        ("a.py", "x = 1\nreturn x", True),
        ("a.py", "x = 1\n\nreturn x + 1", True),
        ("b.py", "x = 1", True),
    ):
        document.write_text(f"text\n```python of {name}\n{part}\n```\n")
        assert len(list(docs.stale_excerpts(document))) == fails, part


WARM_PROGRAM = """\
import atexit, multiprocessing, os, sys, threading, time

class Mine:
    pass

def child(mine):
    print(type(mine).__name__, multiprocessing.current_process().name, "json.tool" in sys.modules, flush=True)

if __name__ == "__main__":
    print(sys.argv, os.getcwd(), sys.path[0], os.environ["WHAT"], "json.tool" in sys.modules, flush=True)
    process = multiprocessing.get_context("spawn").Process(target=child, args=[Mine()], name="spawned")
    process.start()
    process.join()
    threading.Thread(target=lambda: [time.sleep(0.2), print("thread", flush=True)]).start()
    atexit.register(print, "atexit")
    print("told", file=sys.stderr)
    sys.exit(process.exitcode or 7)
"""


def test_a_warm_interpreter_runs_a_program_as_a_fresh_one_does(tmp_path: Path) -> None:
    program, environment = tmp_path / "program.py", {**os.environ, "WHAT": "given"}
    program.write_text(WARM_PROGRAM)
    command = [sys.executable, str(program), "a", "1"]
    fresh = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert fresh.stdout.endswith(" given False\nMine spawned False\nthread\natexit\n")
    with warm.Warm(sys.executable, []) as bare, bare.more(["json.tool"]) as more:
        for interpreter, imported in ((bare, "False"), (more, "True"), (bare, "False")):
            done = interpreter.run(program, tmp_path, environment, timeout=60, arguments=["a", 1])
            assert (done.returncode, done.stderr) == (fresh.returncode, fresh.stderr) == (7, "told\n")
            assert done.stdout == fresh.stdout.replace("given False", f"given {imported}")


def test_a_warm_interpreter_tells_how_a_program_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    with warm.Warm(sys.executable, []) as interpreter:
        killed, wrong = "import os; os.kill(os.getpid(), 9)", 'program.py", line 1, in <module>'
        for code, status, told in ((killed, -9, ""), ("1 / 0", 1, wrong), ("", 0, "")):
            program.write_text(code)
            done = interpreter.run(program, tmp_path, {}, timeout=60)
            assert done.returncode == status and told in done.stderr
        program.write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(100)")
        with pytest.raises(subprocess.TimeoutExpired):
            interpreter.run(program, tmp_path, {}, timeout=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_setup_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "dirname", "id"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    script = Path(stages.__file__).parent / "setup.sh"
    environment = {"PATH": str(tmp_path / "bin"), "PYTHON": "python-that-is-not-there"}
    done = subprocess.run(["sh", script, "system"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no python-that-is-not-there here" in done.stderr
    done = subprocess.run(["sh", script, "browser"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0  # the other tests run
    assert "no browser here: tests that open pages are skipped" in done.stdout


@pytest.mark.parametrize(
    ("status", "settings", "base", "runs"),
    [
        (0, ":env:.find-links='/wheels'", "false", ["uv"]),
        (1, "global.cert='/cert'", "false", ["uv", "pip"]),
        (0, "global.index-url='http://index'", "false", ["pip"]),
        (0, "", "true", ["pip"]),
    ],
)
def test_setup_installs_with_uv_or_pip(tmp_path: Path, status: int, settings: str, base: str, runs: list[str]) -> None:
    def program(path: str, text: str) -> None:
        (tmp_path / path).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / path).chmod(0o755)

    for folder in ("tools", "demo", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(Path(stages.__file__).parent / "setup.sh", tmp_path / "tools")
    (tmp_path / "demo/requirements.txt").write_text("pillow\n")
    (tmp_path / ".venv/pyvenv.cfg").write_text(f"include-system-site-packages = {base}\n")
    program(".venv/bin/uv", f'echo "uv ${{UV_FIND_LINKS-}} $*" >> log; exit {status}')
    program(".venv/bin/python", f'[ "$3" = config ] && echo "{settings}" || echo "pip $*" >> log')
    environment = {**os.environ, "PIP_FIND_LINKS": "/wheels /more"}
    environment.pop("UV", None)
    for _ in range(2):  # the second time all is there
        command = ["sh", "tools/setup.sh", "demo"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        ran = (tmp_path / "log").read_text().splitlines()
        assert [line.split()[0] for line in ran] == runs
        assert all(line.endswith("-r demo/requirements.txt") for line in ran)
        assert all("uv /wheels,/more pip install" in line for line in ran if line.startswith("uv"))


def test_mutations_fit_the_code() -> None:
    """Each defect's text stands once in its file, so that `make mutations` can put it in. Its tests are there."""
    unfit = [one.name for one in mutations.DEFECTS if (docs.ROOT / one.file).read_text().count(one.old) != 1]
    assert unfit == []
    for one in mutations.DEFECTS:
        if go := re.search(r"^cd (\S+) .*'\^\((.*)\)\$'$", one.test.run):
            files = [*(docs.ROOT / go[1]).glob("*_test.go")]
            names = [f"func {name}(" for name in go[2].split("|")]
        else:
            files = [docs.ROOT / name for name in re.findall(r"python/tests/\S+\.py", one.test.run)]
            chosen = re.search(r"-k '(.*)'$", one.test.run)
            names = re.findall(r"\w{4,}", chosen[1]) if chosen else []
        text = "".join(file.read_text() for file in files)
        assert all(name in text for name in names), one


def test_commands_of_the_results_exist() -> None:
    """The index says how to repeat each topic: in minutes, so this test looks for targets, topics and flags."""
    results = docs.ROOT / "bench/results"
    index, found = (results / "README.md").read_text(), 0
    for command in re.findall(r"`make ([^`]+)`", index):
        found += 1
        words = shlex.split(command)
        make = ["make", "-n", *words, *(["FOLDER=x"] if words[0] == "bench-gpu" else [])]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        assert subprocess.run(make, cwd=docs.ROOT, env=environment, capture_output=True).returncode == 0, command
        topics = [word for one in words if one.startswith("ARGS=") for word in one.removeprefix("ARGS=").split()]
        assert all((docs.ROOT / f"bench/python/cases/{topic}.py").exists() for topic in topics), command
    assert found > 10
    for document in results.glob("*.md"):
        assert document.name == "README.md" or f"({document.name})" in index, f"the index lacks {document.name}"
        for line in re.findall(r"^ {4}(stocached .*)$", document.read_text(), re.MULTILINE):
            words = line.split()
            command = [docs.ROOT / "bin/stocached", words[1], "--help"]
            known = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            missing = [word for word in words if word.startswith("--") and f"{word} " not in known]
            assert not missing, f"{document.name}: {line}"


@pytest.mark.parametrize("apt", [None, "apt-get"])
def test_a_build_of_packages_names_all_files_that_it_lacks(
    apt: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = native.PACKAGES[0]
    there, *missing = package.files
    (tmp_path / there).touch()
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: apt)
    monkeypatch.setattr(debian, "apt", lambda work, _: work.mkdir() or ["false"])
    with pytest.raises(SystemExit) as error:
        native.fetch()
    said = str(error.value)
    assert said.startswith(f"stocached: {', '.join(missing)} of ") and "tools/get_sources.sh" in said
    assert ("stocached: false source " in said) == (apt is not None)
    assert there not in said and [file.name for file in tmp_path.iterdir()] == [there]


@pytest.mark.parametrize(
    ("lists", "archive"),
    [
        ("deb http://archive.ubuntu.com/ubuntu noble main\n", "http://deb.debian.org/debian"),
        ("Types: deb\nURIs: http://mirror.example/debian/\nSuites: bookworm\n", "http://mirror.example/debian"),
        ("deb [signed-by=/keys] https://mirror.example/debian bookworm main\n", "https://mirror.example/debian"),
        ("URIs: http://mirror.example/debian-security\n", "http://deb.debian.org/debian"),
    ],
)
def test_a_small_debian_comes_from_the_archive_of_this_machine_if_it_has_one(
    lists: str, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "lists_of_the_machine", lambda: {"a.list": lists})
    assert debian.mirror() == archive


def test_packages_say_the_commit_that_they_are_made_of(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    assert native.revision(clone) == "", "an archive of the source has no commit"

    def git(*arguments: str) -> str:
        settings = ("-c", "user.name=N", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false")
        # Git's variables would be those of the clone that these tests are in, if a hook of it runs them.
        variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        command = ["git", "-C", str(clone), *settings, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=variables).stdout.strip()

    git("init", "--quiet")
    (clone / "a.go").write_text("package a")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    commit = git("rev-parse", "HEAD")
    git("tag", "v9.9.9")
    assert native.revision(clone) == commit
    (clone / "inside").mkdir()
    assert native.revision(clone / "inside") == "", "an archive that somebody unpacked in another clone"
    (clone / "b.go").write_text("package a")
    assert native.revision(clone) == f"{commit}+"


def test_settings_of_go_on_a_machine_do_not_change_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[tuple[tuple[str | Path, ...], dict[str, str]]] = []
    monkeypatch.setattr(native, "run", lambda *command, **variables: commands.append((command, variables)))
    monkeypatch.setattr(native, "build_libraries", lambda *_: tmp_path)
    monkeypatch.setattr(native, "compilers", lambda *_: (tmp_path, tmp_path))
    monkeypatch.setattr(native, "revision", lambda _: "abc")
    native.build(native.ARCHITECTURES["x86_64"], tmp_path)
    command, variables = commands[-1]
    assert command[1] == "build"
    assert "-ldflags=-s -w -X github.com/stocached/stocached/internal/cli.commit=abc" in command
    makefile = (docs.ROOT / "Makefile").read_text()
    assert f"\nGO_FLAGS := {variables['GOFLAGS'].removesuffix(' -buildvcs=false')}\n" in makefile
    assert variables["GOAMD64"] == "v1"


def test_clones_share_libraries_of_the_same_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build(package: native.Package, _: object, __: object, prefix: Path) -> None:
        built.append(package)
        for name in package.libraries:
            (prefix / "lib").mkdir(parents=True, exist_ok=True)
            (prefix / "lib" / name).write_text(name)

    built: list[native.Package] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, fake in (("fetch", lambda: None), ("build_package", build), ("package_version", str)):
        monkeypatch.setattr(native, name, fake)
    mine, other = native.ARCHITECTURES.values()
    folders = [native.build_libraries(mine, tmp_path / clone) for clone in ("a", "b")]
    assert not subprocess.run(["diff", "-r", *folders]).returncode
    native.build_libraries(other, tmp_path / "b")
    assert built == 2 * [*native.PACKAGES]


def test_a_test_of_packages_may_not_be_skipped_before_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIPS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no root"):
        made.lacking("no root")
    monkeypatch.setenv("SKIPS", "0")
    with pytest.raises(pytest.fail.Exception, match="no root; SKIPS=0"):
        made.lacking("no root")


def test_the_site_refuses_a_link_to_a_missing_file() -> None:
    shown = {Path("README.md")}
    assert stage.on_site("[a](../README.md)", Path("docs"), shown) == "[a](../README.md)"
    assert stage.on_site("[a](../Makefile#L1)", Path("docs"), shown) == f"[a]({stage.SOURCE}Makefile#L1)"
    with pytest.raises(SystemExit, match=r"in docs links to \.\./gone\.c, which"):
        stage.on_site("[a](../gone.c)", Path("docs"), shown)


def test_the_site_shows_blocks_without_what_they_say_to_tests() -> None:
    text = "a\n\n<!-- run as\n[b](c)\n...\n-->\n```sh run\nls\n```\n<!-- other -->\n```go run as d.txt\ne\n```\n"
    assert stage.on_site(text, Path("docs"), set()) == "a\n\n```sh\nls\n```\n<!-- other -->\n```go\ne\n```\n"


def test_the_site_shows_diagrams_as_text_without_mermaid() -> None:
    text = "```mermaid\na --> b\n```\n"
    assert stage.on_site(text, Path("docs"), set()) == text
    assert stage.on_site(text, Path("docs"), set(), diagrams=False) == "```text\na --> b\n```\n"


# The commands take minutes, and the stages of `make ci` run what they run. So these tests look whether each exists.
@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", "docs/guides/demo.md", "docs/guides/loader.md", "docs/spec/model.md"]
)
def test_commands_of_a_document_exist(document: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    parts = [
        part.strip()
        for block in docs.blocks_by("tools/test_tools.py", document)
        for part in re.split(r"\n|&&", re.sub(r" +#.*", "", block))
    ]
    commands = [part for part in parts if part]
    assert commands
    for command in commands:
        words = [word for word in command.split() if not word.startswith(("MODEL_DEEP=", "CGO_ENABLED="))]
        if words[0] == "make":
            words.insert(1, "-n")
        elif words[:2] == ["go", "test"]:
            (package,) = (word for word in words if word.startswith("./"))
            if "-run" in words:
                name = words[words.index("-run") + 1]
                folder = docs.ROOT / package
                assert any(
                    f"func Test{name.removeprefix('Test')}" in file.read_text() for file in folder.glob("*_test.go")
                ), command
            words = ["go", "list", package]
        elif words[:2] == ["go", "generate"]:
            words.insert(2, "-n")
        elif words[0].startswith("build/c/"):
            words = ["make", "-n", "-C", "cclient", f"../{words[0]}"]
        elif words[0].startswith(".venv/"):
            assert (docs.ROOT / words[3]).exists() and words[5] in (docs.ROOT / words[3]).read_text()
            continue
        elif "/" in words[0]:
            assert os.access(docs.ROOT / words[0], os.X_OK), command
            continue
        done = subprocess.run(words, cwd=docs.ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_a_block_shows_a_part_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "rest.txt").write_text("x = 2\n...\n")
    document = tmp_path / "page.md"
    document.write_text(
        "<!-- run as\nother\n-->\n```sh run\n1\n```\n<!-- run as\nfor x in (1, 2):\n    ...\n-->\n"
        "```python run\ny = x\n\nprint(y)\n```\n```python run as rest.txt\nprint(x)\n```\n```python run\nprint()\n```\n"
    )
    _, inside, of_file, alone = docs.examples(document)
    assert docs.program(inside) == "for x in (1, 2):\n    y = x\n\n    print(y)\n"
    assert docs.program(of_file) == "x = 2\nprint(x)\n"
    assert docs.program(alone) == "print()\n"
    assert not list(docs.untried(document))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```sh\nls\n```\n", "does not say who runs it"),
        ("```sh run\nls\n```\n", None),
        ("```json\n{}\n```\n", None),
        ("```yaml by good.py\n```\n", None),
        ("```yaml by bad.py\n```\n", 'does not name "page.md"'),
        ("```yaml by gone.py\n```\n", 'does not name "page.md"'),
        ("<!-- run as\nls\n-->\n\n```sh run\nls\n```\n", "does not stand above"),
    ],
)
def test_a_block_that_no_test_runs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, wrong: str | None
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "good.py").write_text('"page.md"')
    (tmp_path / "bad.py").write_text("another.md")
    document = tmp_path / "page.md"
    document.write_text(text)
    found = list(docs.untried(document))
    assert (wrong is None and not found) or (wrong is not None and len(found) == 1 and wrong in found[0])


def test_the_list_says_of_each_block_who_runs_it() -> None:
    for document in (docs.ROOT / "docs").rglob("*.md"):
        blocks = re.findall(rf"^ *```({'|'.join(docs.LANGUAGES)}) (?!output)", document.read_text(), re.M)
        listed = list(docs.covered(document))
        assert [line.split(": ")[1].split(",")[0] for line in listed] == blocks, document
    (shell, *_) = docs.covered(docs.ROOT / "docs/guides/demo.md")
    assert re.fullmatch(r"docs/guides/demo.md:\d+: sh, not run; its commands exist: tools/test_tools.py", shell)


def test_a_configuration_is_run_by_the_server_or_by_its_comment(tmp_path: Path) -> None:
    python = docs.Interpreters()
    for frame, said in (
        (None, "stocached serve"),
        ("grep caches config.yaml\n", None),
        ("echo no redis; exit 77\n", "no redis"),
    ):
        example = docs.Example(tmp_path / "page.md", 1, "yaml", None, "caches: [{name: a}]\n", frame=frame)
        if frame and "77" in frame:
            with pytest.raises(docs.MissingError, match="no redis"):
                docs.run(example, tmp_path, python)
        else:
            wrong = docs.run(example, tmp_path, python)
            assert (wrong is None) if said is None else (wrong is not None and said in wrong)
    python.numpy.close()
