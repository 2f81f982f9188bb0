"""Build hook: compiles libstocached.so and libstocached_image.so with the system's C compiler ($CC,
$CFLAGS) into the wheel, and puts the C sources into the sdist. Without the headers of libjpeg-turbo,
libstocached_image.so decodes no JPEG files, and stocached.image says so. The wheel is then without
the program stocached-decode.

A wheel that is built from a full checkout where Go is installed (`go`, or $GO) also has the program
`stocached`. STOCACHED_GO=0 leaves it out. A wheel without the program has a script of that name, which
says why: pip does not show the output of a build.

`make dist` compiles libraries and programs itself. It names their folder in STOCACHED_BUILT, and the
platform of the wheel in STOCACHED_PLATFORM."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY, IMAGE_LIBRARY, DECODER = "libstocached.so", "libstocached_image.so", "stocached-decode"
# It runs another installation of the program that is later on the PATH instead. Not another script:
# two of them might call each other for ever.
WITHOUT_PROGRAM = """#!/bin/sh
IFS=:
for folder in $PATH; do
    program=${folder:-.}/stocached
    [ -f "$program" ] && [ -x "$program" ] && [ "$(head -c 2 "$program")" != '#!' ] && exec "$program" "$@"
done
echo REASON >&2
exit 127
"""
SOURCES = ("stocached.c", "stocached.h", "stocached_layout.h", "stocached.map", "src")
IMAGE_SOURCES = ("stocached_image.h", "stocached_image.map", "decode_main.c", "decoders.mk", "no_codecs.c", "src")
IMAGE_OPTIONS = ["-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"]


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources, image_sources = self.sources(), self.image_sources()
        if self.target_name == "sdist":
            build_data["force_include"].update({str(sources / name): f"csrc/{name}" for name in SOURCES})
            build_data["force_include"].update({str(image_sources / name): f"cimage/{name}" for name in IMAGE_SOURCES})
            return
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        self.folder = tempfile.TemporaryDirectory()  # lives as long as the hook, which is longer than the build
        if version == "editable":
            self.compile(sources, Path(self.root, "src", "stocached", LIBRARY))
            self.compile_image(image_sources, Path(self.root, "src", "stocached", IMAGE_LIBRARY))
            return
        for header in (sources / "stocached.h", image_sources / "stocached_image.h"):  # which the package binds
            build_data["force_include"][str(header)] = f"stocached/_native/{header.name}"
        if built := os.environ.get("STOCACHED_BUILT"):
            self.take(Path(built), build_data)
            return
        library = Path(self.folder.name, LIBRARY)
        self.compile(sources, library)
        build_data["force_include"][str(library)] = f"stocached/{LIBRARY}"
        image_library = Path(self.folder.name, IMAGE_LIBRARY)
        jpeg = self.compile_image(image_sources, image_library)
        build_data["force_include"][str(image_library)] = f"stocached/{IMAGE_LIBRARY}"
        if jpeg:
            decoder = Path(self.folder.name, DECODER)
            self.compile_decoder(image_sources, decoder)
            build_data["force_include"][str(decoder)] = f"{self.scripts()}/{DECODER}"
        program = Path(self.folder.name, "stocached")
        self.make_program(program)
        build_data["force_include"][str(program)] = f"{self.scripts()}/stocached"

    def take(self, built: Path, build_data: dict[str, Any]) -> None:
        """What is compiled already, and the notices of the software in it."""
        build_data["tag"] = f"py3-none-{os.environ['STOCACHED_PLATFORM']}"
        files = {library: f"stocached/{library}" for library in (LIBRARY, IMAGE_LIBRARY)}
        files |= {program: f"{self.scripts()}/{program}" for program in ("stocached", DECODER)}
        information = f"stocached-{self.metadata.version}.dist-info"
        files |= {"go-modules.txt": f"{information}/licenses/licenses/go-modules.txt"}
        files |= {"stocached.cdx.json": f"{information}/sboms/stocached.cdx.json"}
        build_data["force_include"].update({str(built / name): place for name, place in files.items()})

    def scripts(self) -> str:
        """pip puts what lies there beside the interpreter."""
        return f"stocached-{self.metadata.version}.data/scripts"

    def sources(self) -> Path:
        """The C sources: those bundled in an sdist, else those of the checkout that this folder is in."""
        for folder in (Path(self.root, "csrc"), Path(self.root).parent / "cclient"):
            if (folder / "stocached.c").is_file():
                return folder
        raise FileNotFoundError(
            "the C sources are neither in csrc/ nor in ../cclient/; build from an sdist or from a full checkout"
        )

    def image_sources(self) -> Path:
        """Those of the library for pictures: in an sdist, or beside this folder."""
        bundled = Path(self.root, "cimage")
        return bundled if bundled.is_dir() else Path(self.root).parent / "cimage"

    def decoders(self, name: str) -> list[str]:
        """What decoders.mk says of that."""
        lines = (self.image_sources() / "decoders.mk").read_text().splitlines()
        return next(line.split()[2:] for line in lines if line.startswith(f"DECODER_{name} = "))

    def compile(self, sources: Path, library: Path) -> None:
        self.run_compiler(["-O2", "-pthread"], library, sources / "stocached.map", [sources / "stocached.c"])

    def compile_image(self, sources: Path, library: Path) -> bool:
        """False: headers of decoders are missing, so it decodes no files."""
        probe = [*shlex.split(os.environ.get("CC", "cc")), "-fsyntax-only", "-xc", "-"]
        text = "".join(f"#include <{header}>\n" for header in self.decoders("HEADERS"))
        jpeg = subprocess.run(probe, input=text, text=True, stderr=subprocess.DEVNULL).returncode == 0
        files, libraries = sorted((sources / "src").glob("*.c")), [*self.decoders("LIBRARIES"), "-lm"]
        if not jpeg:
            self.app.display_warning(
                "stocached: stocached.image decodes pictures by Pillow, as headers of libraries are missing. On Debian "
                f"and Ubuntu: sudo apt-get install -y {' '.join(self.decoders('PACKAGES'))}; then install this package again"
            )
            files = [*(file for file in files if file.name not in self.decoders("SOURCES")), sources / "no_codecs.c"]
            libraries = ["-lm"]
        self.run_compiler(self.image_options(), library, sources / "stocached_image.map", [*files, *libraries])
        return jpeg

    def compile_decoder(self, sources: Path, program: Path) -> None:
        """The program that decodes for a server, with the library inside."""
        files = sorted((sources / "src").glob("*.c"))
        inputs = [sources / "decode_main.c", *files, *self.decoders("LIBRARIES"), "-lm"]
        self.run_compiler(self.image_options(), program, None, inputs)

    def image_options(self) -> list[str]:
        return [*IMAGE_OPTIONS, f"-I{self.sources() / 'src' / 'base'}", f"-I{self.image_sources()}"]

    def run_compiler(self, options: list[str], output: Path, symbols: Path | None, inputs: list[Any]) -> None:
        """symbols: the map of a library; None makes a program."""
        shared = ["-shared", f"-Wl,-soname,{output.name}.1", f"-Wl,--version-script,{symbols}", "-Wl,-z,defs"]
        linked = [self.compiled(options, one) if isinstance(one, Path) else one for one in inputs]
        self.call([*options, *(shared if symbols else []), "-Wl,-z,relro,-z,now", "-o", output, *linked])

    def compiled(self, options: list[str], source: Path) -> Path:
        """The object of a file. The library and the program have the same ones."""
        made = Path(self.folder.name, f"{source.stem}.o")
        if not made.exists():
            self.call([*options, "-c", "-o", made, source])
        return made

    def call(self, arguments: list[Any]) -> None:
        command = [
            *shlex.split(os.environ.get("CC", "cc")),
            "-std=c11", "-fvisibility=hidden", "-fPIC",
            *shlex.split(os.environ.get("CFLAGS", "")),
            *map(str, arguments),
        ]  # fmt: skip
        self.app.display_info(shlex.join(command))
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise RuntimeError(
                f"no C compiler {command[0]!r}; install one (Debian: apt install gcc libc6-dev), or set CC"
            ) from None

    def make_program(self, program: Path) -> None:
        """The command line, or the script in its place: the package works without it."""
        checkout, go = Path(self.root).parent, os.environ.get("GO", "go")
        if not (checkout / "cmd" / "stocached").is_dir():
            reason = "it was built from a source package; install from a clone of the repository, with Go on the PATH"
        elif os.environ.get("STOCACHED_GO") == "0":
            reason = "it was built with STOCACHED_GO=0; install it again without that"
        elif shutil.which(go) is None:
            reason = "there was no Go when it was built; install Go 1.26 or later (https://go.dev/dl), then the package again"
        else:
            command = [go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), "./cmd/stocached"]
            self.app.display_info(shlex.join(command))
            environment = {**os.environ, "CGO_ENABLED": "0"}
            try:
                subprocess.run(
                    command, cwd=checkout, env=environment, check=True, timeout=300, stderr=subprocess.PIPE, text=True
                )
                return
            except (subprocess.SubprocessError, OSError) as error:
                said = str(getattr(error, "stderr", None) or error).strip()
                reason = f"Go could not compile it; mend this and install the package again: {said}"
        text = f"stocached: this Python package is without the command line: {reason}"
        self.app.display_warning(text)
        program.write_text(WITHOUT_PROGRAM.replace("REASON", shlex.quote(text)))
        program.chmod(0o755)
