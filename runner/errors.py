"""Errors of a command: one line on stderr, and the status with which it exits."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn


def printable(text: str) -> str:
    """Escape line ends and the sequences that steer a terminal in a text from elsewhere."""
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


def one_line(error: Exception) -> str:
    """An error in one line: its kind and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def fail(message: str, status: int = 2) -> NoReturn:
    """Print an error in one line and exit."""
    print(f"error: {printable(message)}", file=sys.stderr)
    raise SystemExit(status)


@contextlib.contextmanager
def exit_on_errors() -> Iterator[None]:
    """Exit with status 2 and one line where the block raises ValueError or OSError, with 130 after Ctrl-C."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
