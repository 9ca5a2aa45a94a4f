"""Imports that would delay the start of a command."""

import importlib
import sys
import types
from typing import Any

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
        for name, standin in standins.items():  # whoever else imports these libraries gets them
            if sys.modules.get(name) is standin:
                del sys.modules[name]
