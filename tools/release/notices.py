"""What software of others the packages hold: the texts of its licences, and the bill of materials in CycloneDX."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from version import version as version_of_product

from . import native
from .commands import ROOT, TOOLS, run

LICENSES, BILL = "go-modules.txt", "stocached.cdx.json"
UPLOT, UPLOT_FOLDER = "1.6.32", ROOT / "internal/cli/web/page"
LICENSE_FILE = re.compile(r"((UN)?LICEN[CS]E|COPYING|NOTICE|PATENTS|COPYRIGHT)([.-].*)?", re.IGNORECASE)


def write(folder: Path) -> None:
    """Writes both files about the program in the folder, beside it."""
    made = bill(folder / "stocached")
    (folder / BILL).write_text(json.dumps(made, indent=2) + "\n")
    modules = [(part["name"], part["version"]) for part in made["components"] if part["purl"].startswith("pkg:golang/")]
    (folder / LICENSES).write_text(licenses([module for module in modules if module[0] != "std"]))


def licenses(modules: list[tuple[str, str]]) -> str:
    go = os.environ.get("GO", "go")
    root = Path(run(go, "env", "GOROOT").strip())
    parts = [("Go's runtime and standard library", [root / "LICENSE", root / "PATENTS"])]
    listed = run(go, "list", "-m", "-f", "{{.Dir}}", *(name for name, _ in modules)).splitlines()
    for folder, (name, version) in zip(listed, modules, strict=True):
        files = sorted(file for file in Path(folder).iterdir() if LICENSE_FILE.fullmatch(file.name))
        if not files:
            raise SystemExit(f"stocached: {name} {version} has no file with its licence")
        parts.append((f"{name} {version}", files))
    parts.append((f"uPlot {UPLOT}, in the page of stocached web", [UPLOT_FOLDER / "uPlot.LICENSE"]))
    rule = "-" * 100
    text = "The program stocached has this software inside. These are the texts of their licences.\n"
    for title, files in parts:
        text += f"\n{rule}\n{title}\n{rule}\n"
        text += "".join(f"\n{file.read_text(errors='replace').strip()}\n" for file in files if file.is_file())
    return text


def bill(program: Path) -> dict[str, Any]:
    """What cyclonedx-gomod finds in the program, the libraries that the library for pictures and stocached-decode have
    inside, and uPlot, which the program has inside."""
    version, output = version_of_product(), program.with_name(BILL)
    tool = TOOLS / "cyclonedx-gomod"
    options = ["-json", "-licenses", "-std", "-noserial", "-version", f"v{version}"]
    run(tool, "bin", *options, "-output", output, program, GOPROXY="off")
    made: dict[str, Any] = json.loads(output.read_text())
    product = made["metadata"]["component"]
    product |= {"name": "stocached", "version": version, "purl": f"pkg:pypi/stocached@{version}"}
    product.pop("hashes", None)  # they are the program's for one architecture
    made["metadata"]["timestamp"] = native.timestamp()
    script = (UPLOT_FOLDER / "uPlot.min.js").read_bytes()
    uplot = {
        "bom-ref": "uplot",
        "type": "library",
        "name": "uplot",
        "version": UPLOT,
        "scope": "required",
        "purl": f"pkg:npm/uplot@{UPLOT}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(script).hexdigest()}],
        "licenses": [{"license": {"id": "MIT"}}],
    }
    ours = [*map(library, native.PACKAGES), uplot]
    names = [part["bom-ref"] for part in ours]
    made["components"] += ours
    made["dependencies"] += [{"ref": name} for name in names]
    for part in made["dependencies"]:
        if part["ref"] == product["bom-ref"]:
            part["dependsOn"] += names
    return made


def library(package: native.Package) -> dict[str, Any]:
    (original,) = (sum_ for name, sum_ in package.files.items() if ".orig." in name)
    version = package.version.replace(":", "%3A").replace("+", "%2B")
    return {
        "bom-ref": package.name,
        "type": "library",
        "name": package.name,
        "version": package.version,
        "scope": "required",
        "purl": f"pkg:deb/debian/{package.name}@{version}?arch=source",
        "hashes": [{"alg": "SHA-256", "content": original}],
        "licenses": [{"license": {"id": name}} for name in package.licences],
    }
