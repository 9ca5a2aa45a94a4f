"""Moved, for one version."""

import sys

MOVED = "common.environments is now common.suites: python -m common.suites"
raise SystemExit(f"error: {MOVED}") if sys.argv[0] == "-m" else ImportError(MOVED)
