from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from website import reference, stage

SITE = Path("build/site")
MERMAID = Path(".tools/mermaid.js")  # draws diagrams in the browser; `make setup-site` takes it from npm


def main() -> int:
    shutil.rmtree(SITE, ignore_errors=True)
    stage.stage(SITE / "pages", diagrams=MERMAID.exists())
    reference.write(SITE / "pages/reference")
    stage.list_folders(SITE / "pages")
    shutil.copytree(Path(__file__).parent / "assets", SITE / "pages/assets")
    if MERMAID.exists():
        shutil.copyfile(MERMAID, SITE / "pages/assets/mermaid.js")
    else:
        print(
            f"site: THE DIAGRAMS ARE TEXT, as {MERMAID} is missing: install npm, then make site takes mermaid from it",
            file=sys.stderr,
        )
    if "--stage" in sys.argv[1:]:
        return 0
    return subprocess.run((sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet")).returncode


if __name__ == "__main__":
    sys.exit(main())
