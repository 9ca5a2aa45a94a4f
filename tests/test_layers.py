"""The runner's layers: imports that only point down."""

import ast

import pytest
from helpers import ROOT

# From the lowest up, as runner/__init__.py lists them. Those of the last row do not import each other.
LAYERS = [["errors", "options"], ["experiment"], ["devices"], ["files"], ["report"], ["halving", "training"], ["rungs"]]
LAYERS += [["main", "render", "evaluate", "same", "compare", "export"]]
HEIGHT = {layer: number for number, layers in enumerate(LAYERS) for layer in layers}
MODULES = sorted(path for path in (ROOT / "runner").rglob("*.py") if path.name != "__init__.py")
SHARED = sorted((ROOT / "common").rglob("*.py"))


def imports(path):
    """Every module that a file imports, also inside of its functions; `from package import module` as the module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = ROOT.joinpath(*name.split(".")).with_suffix(".py").exists()
                yield name if is_module else node.module


def layer(name):
    """runner.options.parse -> options, runner.main -> main."""
    return name.split(".")[1]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path):
    here = layer(name_of(path))
    for name in imports(path):
        if name.startswith("runner."):
            lower = layer(name) == here or HEIGHT[layer(name)] < HEIGHT[here]
            assert lower, f"{name_of(path)} imports {name}"


def test_modules_of_a_layer_do_not_import_in_a_circle():
    arrows = {name_of(path): {name for name in imports(path) if name.startswith("runner.")} for path in MODULES}
    left = dict(arrows)
    while ready := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in ready:
            del left[name]
    assert left == {}


def test_what_a_copy_takes_imports_nothing_of_the_runner():
    assert SHARED
    for path in SHARED:
        assert [name for name in imports(path) if name.partition(".")[0] == "runner"] == [], path
