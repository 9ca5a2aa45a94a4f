"""python -m runner.same: a copy whose change is turned off is its script, and one whose change is on is not."""

import re

import pytest
from helpers import ROOT, capture
from runs import assert_refused

from runner import same

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]

OLD = "        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()\n"
FIELD = "    ent_coef: NonNegative = 0.01  # weight of the entropy bonus\n"


@pytest.fixture
def copy(folder):
    """A copy of ppo.py with a penalty of the ratio, a metric of its own and a field that turns it off."""
    text = (ROOT / "ppo.py").read_text()
    for old, new in {
        OLD: OLD + "        policy_loss += config.ratio_coef * ((ratio - 1) ** 2).mean()\n",
        FIELD: FIELD + "    ratio_coef: NonNegative = 1.0  # weight of the penalty\n",
        '            "entropy": entropy,\n': '            "entropy": entropy, "most_ratio": ratio.max(),\n',
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "penalty_ppo.py").write_text(text)
    return "penalty_ppo.py"


def compare(*words):
    return capture(same.main, "same", *words)


def test_a_copy_is_its_script_with_its_change_turned_off(copy):
    original = str(ROOT / "ppo.py")
    result = compare(copy, original, "--set", "ratio_coef=0.0")
    assert (result.status, result.stderr) == (0, ""), result
    lines = result.stdout.splitlines()
    assert lines[0] == f"penalty_ppo.py and {original}, 3 iterations of CartPole-v1:"
    assert "  most_ratio          only in penalty_ppo.py" in lines
    assert lines[-1].startswith("the same ")
    result = compare(copy, original, "--iterations", "2")
    assert result.status == 1, "the change is on"
    assert re.match(r"not the same: \S+ after 1, \S+ after 2; ", result.stdout.splitlines()[-1])
    words = "--set", "ratio_coef=0.0", "learning_rate=0.01", "--iterations", "1"
    assert compare(copy, original, *words).status == 0, "both have the learning rate"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "ratio=0"], "--set ratio=0: give NAME=VALUE, with a field of the copy's Config"),
        (["--env", "CartPol"], "did you mean CartPole-v1"),
        (["--iterations", "0"], "--iterations must be at least 1, not 0"),
    ],
)
def test_bad_input_of_a_comparison_is_one_line(words, message):
    assert_refused(compare(str(ROOT / "ppo.py"), str(ROOT / "ppo.py"), *words), message)
