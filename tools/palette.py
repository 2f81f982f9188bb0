"""The colours of pictures, as #rrggbb by their names. internal/palette/palette.go is their only table."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "internal/palette/palette.go"
COLOUR = re.compile(r"(\w+)(?:\s*=|:)\s*color\.RGBA\{0x(\w\w), 0x(\w\w), 0x(\w\w), 0xFF\}")

# The themes have the same names: the light one comes first, and is for pictures.
COLOURS: dict[str, str] = {}
for name, *parts in COLOUR.findall(TABLE.read_text()):
    COLOURS.setdefault(name, "#" + "".join(parts).lower())

INK, GREY, PALE, FAINT = (COLOURS[name] for name in ("Ink", "Grey", "Pale", "Faint"))
