"""The scripts read alike: definitions in one order, and the pieces that must be identical are."""

import ast
import functools
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent
SCRIPTS = ["ppo", "dqn", "sac", "td3"]
REPLAY = ["dqn", "sac", "td3"]


def source(script):
    return (FOLDER / f"{script}.py").read_text()


@functools.cache
def definitions(script):
    """Source of every class and function, methods and inner functions too, by name."""
    text = source(script)
    nodes = ast.walk(ast.parse(text))
    return {n.name: ast.get_source_segment(text, n) for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def make_order(script):
    make = next(n for n in ast.parse(source(script)).body if isinstance(n, ast.FunctionDef) and n.name == "make")
    return [n.name for n in make.body if isinstance(n, ast.FunctionDef)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_order_of_make(script):
    names = make_order(script)
    as_called = ["init", "step", "cycle", "explore", "env_step", "learn", "update", "descend"]
    shared = [*as_called, "preprocess", "act", "value"]
    present = [name for name in shared if name in names]
    assert [name for name in names if name in shared] == present
    assert {"init", "preprocess", "act", "value", "explore", "update", "learn", "step"} <= set(present)


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("Algorithm", SCRIPTS),
        ("make_train", SCRIPTS),
        ("preprocess", SCRIPTS),
        ("Torso", ["ppo", "dqn"]),
        ("Torso", ["sac", "td3"]),
        ("cycle_steps", REPLAY),
        ("cycle_updates", REPLAY),
        ("num_iterations", REPLAY),
        ("env_steps", REPLAY),
        ("env_step", ["sac", "td3"]),
        ("descend", ["sac", "td3"]),
        ("cycle", ["sac", "td3"]),
        ("step", ["sac", "td3"]),
        ("Transition", ["sac", "td3"]),
        ("Critic", ["sac", "td3"]),
        ("learn", ["sac", "td3"]),
        ("Params", ["ppo", "td3"]),
    ],
)
def test_pieces_that_must_be_identical(name, scripts):
    assert len({definitions(script)[name] for script in scripts}) == 1


def test_the_layers_of_a_torso_are_the_same():
    layers = [source(script).split("        for size in self.hidden_sizes:")[1] for script in SCRIPTS]
    assert len({text.split("        return x")[0] for text in layers}) == 1


def test_the_last_lines_are_the_same():
    assert len({source(script).split("# -- Training")[1] for script in SCRIPTS}) == 1


# -- Variants ----------------------------------------------------------------------------------------------------------

# Each is made from a script: the definitions that it changes.
VARIANTS = {
    "variants/ppo_rnn": (
        "ppo",
        {"Config", "Actor", "Critic", "Batch", "State", "Algorithm"},
        {"init", "act", "value", "explore", "loss", "update", "make_batch", "learn", "step"},
    ),
    "variants/categorical_dqn": ("dqn", {"Config", "QNetwork"}, {"q_loss", "act", "value"}),
    "variants/sac_discrete": (
        "sac",
        {"Config", "Actor", "Critic", "Transition", "State"},
        {"init", "act", "value", "env_step", "explore", "critic_loss", "actor_loss", "alpha_loss", "update", "learn"}
        | {"cycle", "step"},
    ),
    "variants/pqn": (
        "ppo",
        {"Config", "Torso", "Transition", "Batch", "State"},
        {"accumulate", "init", "act", "value", "explore", "update", "learn", "step"},
    ),
    "variants/reppo": (
        "ppo",
        {"Config", "Torso", "Actor", "Critic", "Transition", "Batch", "Params", "State"},
        {"accumulate", "init", "act", "value", "explore", "update", "make_batch", "learn", "step"},
    ),
}


@pytest.mark.parametrize("script", [*SCRIPTS, *VARIANTS])
def test_every_field_has_a_reason_on_its_line(script):
    """--help shows it."""
    config = next(n for n in ast.parse(source(script)).body if isinstance(n, ast.ClassDef) and n.name == "Config")
    lines = source(script).splitlines()
    fields = [lines[node.lineno - 1] for node in config.body if isinstance(node, ast.AnnAssign)]
    assert [line for line in fields if "  # " not in line] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_changes_only_what_its_algorithm_changes(variant):
    script, classes, functions = VARIANTS[variant]
    before, after = definitions(script), definitions(variant)
    changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert changed - {"make", "__call__"} == classes | functions


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_reads_as_its_script(variant):
    script, _, _ = VARIANTS[variant]
    shared = [name for name in make_order(variant) if name in make_order(script)]
    assert shared == [name for name in make_order(script) if name in shared]
    assert source(variant).split("# -- Training")[1] == source(script).split("# -- Training")[1]


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        ("variants/sac_discrete", ("fill", "learn")),
        ("variants/pqn", ("preprocess", "draw_exploration", "act", "value", "epsilon_at")),
    ],
)
def test_what_follows_from_discrete_actions_is_that_of_dqn(variant, names):
    for name in names:
        assert definitions(variant)[name] == definitions("dqn")[name]


def test_reppo_shares_with_sac_what_follows_from_its_policy():
    for name in ("Torso", "Actor", "squash", "alpha_loss"):
        assert definitions("variants/reppo")[name] == definitions("sac")[name]


def test_pqn_and_reppo_have_the_same_returns():
    returns = [definitions(variant)["q_returns"].split('"""')[2] for variant in ("variants/pqn", "variants/reppo")]
    assert returns[0] == returns[1]
