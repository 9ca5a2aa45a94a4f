"""JSON files of the benchmarks, and tables in the pages. Importing it puts the scripts into the path."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
END = "<!-- end -->"
sys.path[:0] = [str(ROOT), str(ROOT / "variants")]


def read(path: Path) -> Any:
    """A file of JSON."""
    return json.loads(path.read_text())


def dump(content: dict[str, Any]) -> str:
    """JSON with a line for each field, and for each part of a field that is a list of lists or a dict of dicts."""
    fields = []
    for name, x in content.items():
        text, inner = json.dumps(x), x.values() if isinstance(x, dict) else x if isinstance(x, list) else ()
        if inner and all(isinstance(part, type(x)) for part in inner):
            keys = [f"{json.dumps(key)}: " for key in x] if isinstance(x, dict) else [""] * len(x)
            rows = ",\n  ".join(key + json.dumps(part) for key, part in zip(keys, inner, strict=True))
            text = f"{text[0]}\n  {rows}\n{text[-1]}"
        fields.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows]]


def with_table(text: str, begin: str, lines: list[str]) -> str:
    """A page with other lines between the comments `begin` and END."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    return "\n".join([before + begin, *lines, END + after])
