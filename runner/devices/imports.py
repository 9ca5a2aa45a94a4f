"""A fast start of commands: fewer imports, and compiled programs that are kept."""

import hashlib
import importlib
import os
import platform
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import jax

DRAWING = ("seaborn", "matplotlib.pyplot")  # four fifths of the import time of gymnax, which only its pictures need


class _Delayed(types.ModuleType):
    """A module that is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_gymnax() -> None:
    """Import gymnax without the libraries that it draws with; it gets them when it draws."""
    standins = {name: _Delayed(name) for name in DRAWING if name not in sys.modules}
    sys.modules.update(standins)
    try:
        import gymnax  # noqa: F401
    finally:
        for name, standin in standins.items():  # later imports get the real libraries
            if sys.modules.get(name) is standin:
                del sys.modules[name]


def import_ahead(name: str) -> None:
    """Import a module in a thread, while the main one waits for the devices."""
    threading.Thread(target=importlib.import_module, args=(name,), daemon=True).start()


def keep_programs() -> None:
    """Keep compiled programs in JAX_COMPILATION_CACHE_DIR, else in the cache folder of the XDG specification, which
    ignores relative paths. If that cannot be written, a note says that they are not kept.

    Machines that share a home directory have a folder for each kind of CPU: XLA does not load programs of another.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    places = Path(os.environ.get("XDG_CACHE_HOME", "")), Path(os.path.expanduser("~/.cache"))
    try:
        place = next((place for place in places if place.is_absolute()), None)
        if place is None:
            raise OSError("there is no home directory")
        folder = place / "single-file-jax-rl" / _kind_of_cpu()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        hint = "JAX_COMPILATION_CACHE_DIR names a folder for them"
        print(f"note: compiled programs are not kept: {error}; {hint}", file=sys.stderr)
        os.environ.setdefault("MPLCONFIGDIR", f"{tempfile.gettempdir()}/matplotlib-{os.getuid()}")  # else more notes
    else:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _kind_of_cpu(path: Path = Path("/proc/cpuinfo")) -> str:
    """Short text that differs where the features of the CPU do, for which XLA compiles."""
    try:
        lines = path.read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    features = [line for line in lines if line.lower().startswith(("flags", "features"))]
    return hashlib.sha256((features or [platform.processor()])[0].encode()).hexdigest()[:8]
