"""The folder of a run, which one command at a time trains."""

import contextlib
import fcntl
import itertools
import os
import platform
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import jax

from runner.devices.memory import SMALLER
from runner.files.store import CHECKPOINT, LOCK, RECORD
from runner.options.fields import Options, resume_flag


@contextlib.contextmanager
def locked_folder(algorithm: str, env: str, options: Options) -> Iterator[Path]:
    """Create the folder of a new run, or take that of --resume, and lock it until the block ends.

    The lock is one of the kernel on a file that says who trains: it ends with its process, however that ends. A file
    system without locks has none.

    Raises:
        ValueError: another process trains the run, it is not to be resumed, or the folder cannot be written or links
            to another one.
    """
    parent = Path(options.out) / algorithm / env
    directory = Path(options.resume) if options.resume else parent / options.name
    try:
        if not (options.resume or options.name):
            directory = _new_folder(parent)
        directory.mkdir(parents=True, exist_ok=True)
        _check_links(directory)
        lock = _lock(directory)
    except OSError as error:
        hint = "" if options.resume else "; choose another --out"
        raise ValueError(f"cannot write to {directory}: {error.strerror}{hint}") from error
    with lock:
        try:
            if not options.resume and (directory / RECORD).exists():
                hint = f"choose another --name, or continue it with {resume_flag(directory)}"
                raise ValueError(f"{directory} holds a run; {hint}")
            yield directory
        finally:
            with contextlib.suppress(OSError):
                (directory / LOCK).unlink()
                directory.rmdir()  # if the run could not begin, and its folder is empty


def discard(directory: Path) -> None:
    """Remove the record of a run that cannot begin; the end of the lock removes its empty folder."""
    if jax.process_index() == 0:  # which holds the lock for all
        (directory / RECORD).unlink(missing_ok=True)


def resume_hint(directory: Path) -> str:
    """Say what a run that could not be saved has left, and how to continue it."""
    if not (directory / RECORD).exists():
        return "nothing was saved before"
    if not any(directory.rglob(CHECKPOINT)):
        return f"nothing was saved before, start it again with {resume_flag(directory)}"
    return f"what was saved before is complete, continue it with {resume_flag(directory)}"


def out_of_memory_hint(directory: Path, options: Options) -> str:
    """Say what helps a run that ran out of memory. Removes the record of a new run that has saved nothing."""
    if options.resume or any(directory.rglob(CHECKPOINT)):
        return f"continue it on a machine with more memory, with {resume_flag(directory)}"
    discard(directory)
    return SMALLER


def _new_folder(parent: Path) -> Path:
    """Create a folder named by date and time, plus a number if that folder exists."""
    now = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    for i in itertools.count():
        directory = parent / (f"{now}-{i}" if i else now)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(parents=True)
            return directory


def _check_links(directory: Path) -> None:
    """Raise ValueError if a folder in the one of a run is a link that leads out of it, or the lock is a link.

    A run writes only to its own folder, whoever made it. Its other files are replaced, never written through.
    """
    with contextlib.suppress(FileNotFoundError):
        status = (directory / LOCK).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise ValueError(f"{directory / LOCK} is a link or no file; remove it")
    for folder, names, _ in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
                raise ValueError(f"{path} is a link that leads out of the run; replace it by a folder")


def _lock(directory: Path) -> IO[str]:
    """Lock a folder; the lock ends when the file is closed. Raises ValueError if another process holds it."""
    path = directory / LOCK
    while True:
        file = path.open("a+", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read(200) or "another process"
            raise ValueError(f"{directory} is being trained by {who}") from None
        except OSError:
            pass  # this file system has no locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else its owner has just removed it
                file.truncate(0)
                file.write(f"process {os.getpid()} since {datetime.now():%Y-%m-%d %H:%M:%S} (on {platform.node()})")
                file.flush()
                return file
        file.close()
