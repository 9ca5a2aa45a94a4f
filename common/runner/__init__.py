"""Moved, for one version."""

import sys

MOVED = "common.runner is now runner: python -m runner.compare, python -m runner.render, runner.folder.load"
raise SystemExit(f"error: {MOVED}") if sys.argv[0] == "-m" else ImportError(MOVED)
