"""The four scripts read alike: the same headings and order, the pieces that must be identical identical."""

import ast
import difflib
import functools
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
def test_headings(script):
    assert re.findall(r"^# -- (\w+) -+$", source(script), re.MULTILINE) == HEADINGS


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


@pytest.mark.parametrize(
    ("name", "scripts"),
    [("init", ["sac", "td3"]), ("update", ["ppo", "dqn"]), ("env_step", ["dqn", "sac"])],
)
def test_pieces_that_may_differ_in_a_few_lines(name, scripts):
    first, second = (definitions(script)[name].splitlines() for script in scripts)
    assert sum(line[0] in "+-" for line in difflib.ndiff(first, second)) <= 6


def field_lines(script):
    """Source line of each field of Config, by name."""
    config = next(n for n in ast.parse(source(script)).body if isinstance(n, ast.ClassDef) and n.name == "Config")
    lines = source(script).splitlines()
    return {node.target.id: lines[node.lineno - 1] for node in config.body if isinstance(node, ast.AnnAssign)}


@pytest.mark.parametrize("script", ["sac", "td3"])
def test_fields_of_the_replay_scripts_have_the_same_comments(script):
    dqn, other = field_lines("dqn"), field_lines(script)
    for name in ("num_envs", "steps_per_iteration", "learning_starts", "buffer_size", "gamma", "normalize_obs"):
        assert dqn[name].split("  # ")[1] == other[name].split("  # ")[1]


# -- Form --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_copy_needs_no_renaming(script):
    """Neither a docstring nor an error message inside of `make` names the script."""
    assert not re.search(rf"\b{script}\b", definitions(script)["make"], re.IGNORECASE)


@pytest.mark.parametrize("pair", [("ppo", "dqn"), ("sac", "td3")])
def test_torso_is_the_same(pair):
    assert definitions(pair[0])["Torso"] == definitions(pair[1])["Torso"]


def test_the_layers_of_a_torso_are_the_same():
    layers = [source(script).split("        for size in self.hidden_sizes:")[1] for script in SCRIPTS]
    assert len({text.split("        return x")[0] for text in layers}) == 1


def test_the_last_lines_are_the_same():
    assert len({source(script).split("# -- Training")[1] for script in SCRIPTS}) == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_functions_nest_two_deep_at_most(script):
    def depth(node):
        inner = max((depth(child) for child in ast.iter_child_nodes(node)), default=0)
        return inner + isinstance(node, ast.FunctionDef)

    assert depth(ast.parse(source(script))) <= 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_vocabulary(script):
    names = {n.id for n in ast.walk(ast.parse(source(script))) if isinstance(n, ast.Name)}
    names |= {n.arg for n in ast.walk(ast.parse(source(script))) if isinstance(n, ast.arg)}
    assert not names & AVOID
    assert not {name for name in names if name.startswith(("mb_", "b_", "new_"))}


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_field_has_a_reason_on_its_line(script):
    assert [name for name, line in field_lines(script).items() if "  # " not in line] == []
    assert [line for line in field_lines(script).values() if re.search(r"\bdetail \d", line)] == []


# -- Variants ----------------------------------------------------------------------------------------------------------

# Each is made from a script: the definitions that it changes.
VARIANTS = {
    "variants/ppo_rnn": (
        "ppo",
        {"Config", "Actor", "Critic", "Batch", "State", "Algorithm"},
        {"init", "act", "value", "explore", "loss", "update", "evaluate", "learn", "step"},
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
        {"accumulate", "init", "act", "value", "explore", "update", "evaluate", "learn", "step"},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_changes_only_what_its_algorithm_changes(variant):
    script, classes, functions = VARIANTS[variant]
    before, after = definitions(script), definitions(variant)
    changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert changed - {"make", "__call__"} == classes | functions


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_reads_as_its_script(variant):
    script, _, _ = VARIANTS[variant]
    assert re.findall(r"^# -- (\w+) -+$", source(variant), re.MULTILINE) == HEADINGS
    shared = [name for name in make_order(variant) if name in make_order(script)]
    assert shared == [name for name in make_order(script) if name in shared]
    assert source(variant).split("# -- Training")[1] == source(script).split("# -- Training")[1]
    test_functions_nest_two_deep_at_most(variant)
    test_vocabulary(variant)
    test_every_field_has_a_reason_on_its_line(variant)


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
