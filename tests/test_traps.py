"""docs/traps.md: each right line stands in the code, and the test that is named fails without it.

`python tests/test_traps.py` puts each wrong line into a copy of the repository and runs the tests that the page names
for it, of which one must fail; with numbers, as in `python tests/test_traps.py 1 7`, only those.
"""

import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import pytest  # noqa: E402
from helpers import small_config  # noqa: E402

from common.random import shuffle  # noqa: E402

PAGE = (ROOT / "docs/traps.md").read_text()
REPLAY = ["dqn", "sac", "td3", "categorical_dqn", "sac_discrete"]


@dataclass
class Trap:
    """A section of the page."""

    number: int
    title: str
    tests: list[tuple[str, str]]  # file, name
    changes: list[tuple[str, str, str]]  # file, right lines, wrong lines


def change_of(block):
    """The file that the first line of a diff names, its lines as they are and as they would be wrong."""
    head, *lines = block.splitlines()
    right = [line[1:] for line in lines if line[0] != "-"]
    wrong = [line[1:] for line in lines if line[0] != "+"]
    return head.removeprefix("# "), "".join(f"{line}\n" for line in right), "".join(f"{line}\n" for line in wrong)


def read_traps():
    """All traps of the page; diffs whose first line names no file show code that this repository does not have."""
    _, *sections = re.split(r"^## (?=\d+\. )", PAGE, flags=re.MULTILINE)
    for section in sections:
        number, title = re.match(r"(\d+)\. (.*)", section).groups()
        blocks = re.findall(r"^```diff\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        proof = section.partition("**Test:**")[2]
        tests = [(file, name) for name, file in re.findall(r"`(test_\w+)`\]\(\.\./(tests/\w+\.py)\)", proof)]
        changes = [change for change in map(change_of, blocks) if change[0].endswith(".py")]
        yield Trap(int(number), title, tests, changes)


TRAPS = list(read_traps())
trap = pytest.mark.parametrize("trap", TRAPS, ids=[f"{trap.number}" for trap in TRAPS])


def test_the_table_has_them_all():
    assert [trap.number for trap in TRAPS] == list(range(1, 22))
    rows = re.findall(r"^\| (\d+) \| \[(.*?)\]\(#(.*?)\) \|.*\[`(test_\w+)`\]", PAGE, re.MULTILINE)
    for trap, (number, title, anchor, test) in zip(TRAPS, rows, strict=True):
        assert (int(number), title) == (trap.number, trap.title)
        assert anchor == re.sub(r"[^\w -]", "", f"{number}. {title}").lower().replace(" ", "-")
        assert test in [name for _, name in trap.tests]


@trap
def test_the_right_lines_stand_in_the_code(trap):
    for file, right, wrong in trap.changes:
        assert (ROOT / file).read_text().count(right) == 1, f"{file} has not, or more than once:\n{right}"
        assert wrong != right


@trap
def test_the_tests_that_are_named_exist(trap):
    assert trap.tests
    for file, name in trap.tests:
        assert f"\ndef {name}(" in (ROOT / file).read_text()


# -- Traps that no other test shows ------------------------------------------------------------------------------------


def equations(name, jaxpr):
    """All equations of a primitive in a program, those of its loops included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(name, inner)


def operands(name, function, *args):
    """Number of operands of each use of a primitive."""
    return [len(equation.invars) for equation in equations(name, jax.make_jaxpr(function)(*args).jaxpr)]


def step_of(script):
    """An iteration of a script, and abstract arguments of it."""
    algorithm = importlib.import_module(script).make(small_config(script, 2))
    return algorithm.step, jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0)), 0


@pytest.mark.slow
@pytest.mark.parametrize("script", REPLAY)
def test_no_update_stands_in_a_branch(script):
    """When to learn is the structure of the loop: a branch would become a select under vmap over seeds."""
    assert operands("cond", *step_of(script)) == []


def test_a_branch_is_seen_and_under_vmap_it_is_a_select():
    branch = lambda count, x: jax.lax.cond(count % 4 == 0, jnp.sin, jnp.cos, x)
    loop = lambda count, x: jax.lax.scan(lambda x, _: (branch(count, x), None), x, length=3)
    counts, x = jnp.arange(2), jnp.ones(2)
    assert len(operands("cond", loop, 0, 1.0)) == 1
    assert operands("cond", jax.vmap(loop), counts, x) == []
    assert len(operands("select_n", jax.vmap(loop), counts, x)) >= 1
    assert len(operands("cond", jax.vmap(loop, (None, 0)), 0, x)) == 1, "a counter that all trials share is no trap"


@pytest.mark.slow
@pytest.mark.parametrize("script", REPLAY)
def test_no_two_arrays_of_a_state_share_a_buffer(script):
    """Target parameters begin as the online ones: a State that is donated must hold them twice."""
    state = jax.jit(importlib.import_module(script).make(small_config(script, 2)).init)(jax.random.key(0))
    raw = [x for x in jax.tree.leaves(state) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and x.size]
    assert len({x.unsafe_buffer_pointer() for x in raw}) == len(raw)
    following = jax.jit(lambda state: jax.tree.map(jnp.copy, state), donate_argnums=0)(state)
    assert all(x.is_deleted() for x in raw)
    jax.block_until_ready(following)
    shared = {"params": jnp.ones(3)}
    shared["target_params"] = shared["params"]
    with pytest.raises(Exception, match="donate the same buffer twice"):
        jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)(shared)


def test_a_shuffle_is_one_sort_of_one_array():
    key = jax.random.key(0)
    assert operands("sort", partial(shuffle, num_rows=512), key) == [1]
    assert max(operands("sort", partial(jax.random.permutation, x=512), key)) > 1  # the negative control


@pytest.mark.parametrize("script", ["dqn", "categorical_dqn", "pqn"])
def test_the_gradient_of_a_chosen_q_value_is_no_scatter(script):
    assert operands("scatter-add", *step_of(script)) == []
    chosen = lambda q: jnp.take_along_axis(q, jnp.zeros((4, 1), int), axis=-1).sum()
    assert len(operands("scatter-add", jax.grad(chosen), jnp.ones((4, 2)))) == 1  # the negative control


# -- Putting the wrong lines in ----------------------------------------------------------------------------------------


def put_in(change, tests, folder):
    """Run tests on a copy of the repository that has the wrong lines; their result."""
    for name in ("common", "runner", "variants", "presets", "tests", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    for path in [*ROOT.glob("*.py"), *ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.txt")]:
        shutil.copy(path, folder)
    file, right, wrong = change
    (folder / file).write_text((folder / file).read_text().replace(right, wrong))
    names = [f"{file}::{name}" for file, name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", *names]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def main(numbers):
    for trap in TRAPS:
        for change in trap.changes if not numbers or trap.number in numbers else []:
            with tempfile.TemporaryDirectory() as folder:
                result = put_in(change, trap.tests, Path(folder))
            reasons = [line for line in result.stdout.splitlines() if line.startswith("E  ")]
            verdict = {0: "PASSES: the tests prove nothing", 1: "fails"}.get(result.returncode, "cannot run")
            print(f"{trap.number}. {trap.title}, {change[0]}: {verdict}", *reasons[:14], sep="\n", flush=True)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
