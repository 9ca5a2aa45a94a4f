"""The four scripts read alike: the same headings and order, the pieces that must be identical identical."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent
SCRIPTS = ["ppo", "dqn", "sac", "td3"]
REPLAY = ["dqn", "sac", "td3"]
HEADINGS = ["Config", "Networks", "Data", "Algorithm", "Training"]
AVOID = {"rng", "_rng", "obsv", "last_obs", "runner_state", "ts", "polyak", "x2"}


def source(script):
    return (FOLDER / f"{script}.py").read_text()


def definitions(script):
    """Source of every class and function, methods and inner functions too, by name."""
    text = source(script)
    nodes = ast.walk(ast.parse(text))
    return {n.name: ast.get_source_segment(text, n) for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def make_order(script):
    make = next(n for n in ast.parse(source(script)).body if isinstance(n, ast.FunctionDef) and n.name == "make")
    return [n.name for n in make.body if isinstance(n, ast.FunctionDef)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_headings(script):
    assert re.findall(r"^# -- (\w+) -+$", source(script), re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("script", SCRIPTS)
def test_order_of_make(script):
    names = make_order(script)
    shared = ["init", "preprocess", "act", "value", "explore", "update", "learn", "step"]
    assert [name for name in names if name in shared] == shared


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("Algorithm", SCRIPTS),
        ("make_train", SCRIPTS),
        ("preprocess", SCRIPTS),
        ("cycle_steps", REPLAY),
        ("cycle_updates", REPLAY),
        ("num_iterations", REPLAY),
        ("env_steps", REPLAY),
        ("env_step", ["sac", "td3"]),
        ("cycle", ["sac", "td3"]),
        ("Critic", ["sac", "td3"]),
    ],
)
def test_pieces_that_must_be_identical(name, scripts):
    assert len({definitions(script)[name] for script in scripts}) <= 1


@pytest.mark.parametrize("pair", [("ppo", "dqn"), ("sac", "td3")])
def test_torso_is_the_same(pair):
    assert definitions(pair[0])["Torso"] == definitions(pair[1])["Torso"]


def test_the_last_lines_are_the_same():
    assert len({source(script).split("# -- Training")[1] for script in SCRIPTS}) == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_functions_nest_three_deep_at_most(script):
    def depth(node):
        inner = max((depth(child) for child in ast.iter_child_nodes(node)), default=0)
        return inner + isinstance(node, ast.FunctionDef)

    assert depth(ast.parse(source(script))) <= 3


@pytest.mark.parametrize("script", SCRIPTS)
def test_vocabulary(script):
    names = {n.id for n in ast.walk(ast.parse(source(script))) if isinstance(n, ast.Name)}
    names |= {n.arg for n in ast.walk(ast.parse(source(script))) if isinstance(n, ast.arg)}
    assert not names & AVOID
    assert not {name for name in names if name.startswith(("mb_", "b_", "new_"))}


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_field_has_a_reason_on_its_line(script):
    config = next(n for n in ast.parse(source(script)).body if isinstance(n, ast.ClassDef) and n.name == "Config")
    lines = source(script).splitlines()
    fields = [node for node in config.body if isinstance(node, ast.AnnAssign)]
    assert [node.target.id for node in fields if "  # " not in lines[node.lineno - 1]] == []
