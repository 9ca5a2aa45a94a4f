"""Renew the line numbers of links to code, [`text of a line`](../ppo.py#L12), in all pages: python docs/relink.py"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[`(?P<code>[^`]+)`\]\((?P<file>[^)#\s]+)#L(?P<line>\d+)\)")


def pages() -> list[Path]:
    """All pages of the repository."""
    return [page for name in (".", "docs", "variants", "benchmarks") for page in ROOT.glob(f"{name}/*.md")]


def relink(page: Path) -> tuple[str, list[str]]:
    """The text of a page in which each link names the line that contains its code, and the links without such a line.

    If several lines contain the code, the nearest to the old one is taken.
    """
    errors = []

    def renew(match: re.Match) -> str:
        code, file, line = match["code"].replace("\\|", "|"), page.parent / match["file"], int(match["line"])
        lines = file.read_text().splitlines() if file.is_file() else []
        found = [number for number, text in enumerate(lines, 1) if code in text]
        if not found:
            errors.append(f"{page.relative_to(ROOT)}: no line of {match['file']} contains `{code}`")
            return match[0]
        nearest = min(found, key=lambda number: abs(number - line))
        return f"[`{match['code']}`]({match['file']}#L{nearest})"

    return LINK.sub(renew, page.read_text()), errors


def main() -> None:
    """Rewrite the pages. Exits with status 1 if a link has no line."""
    failures = []
    for page in pages():
        text, errors = relink(page)
        failures += errors
        if text != page.read_text():
            page.write_text(text)
            print(f"{page.relative_to(ROOT)}: renewed")
    sys.exit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
