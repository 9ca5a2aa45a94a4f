"""Seeds that diverge are named; scalars of an environment that are not finite are no divergence."""

import json
import re

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.classic_control.cartpole import CartPole
from helpers import call, differences, saved_metrics, saved_state, small_config, small_run
from runs import CASES, FILES, FakeRun, assert_finished, assert_refused, contents, directory_of, one

import runner.devices.programs

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


# -- Divergence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "env"), CASES[2:3])
def test_seeds_that_diverge_are_named(script, env):
    result = call(script, *small_run(script, env=env, seed=5, name="wild", learning_rate=1e30))
    assert_finished(result)
    assert "diverged (a parameter is not finite), in no number above: seed 5, seed 6\n" in result.stdout
    said = re.findall(r"diverged by [\d,]+ env steps \(a parameter is not finite\): (.+)\n", result.stdout)
    assert sorted(", ".join(said).split(", ")) == ["seed 5", "seed 6"]
    assert re.search(r" / [\d,]+ steps  .*  2 of 2 seeds diverged  0 s left\n", result.stdout)
    directory = directory_of(script, "wild", env)
    summary = json.loads((directory / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["diverged_seeds"] == [5, 6]
    assert {path.name for path in directory.iterdir()} == FILES


@one
def test_a_trial_that_diverges_leaves_the_others_as_they_were(script, monkeypatch):
    def compile_init(*args):
        def poisoned(settings, keys):
            state = init(settings, keys)
            return state.replace(params=jax.tree.map(lambda x: x.at[1].set(jnp.nan), state.params))

        init = compiled(*args)
        return poisoned

    compiled = runner.devices.programs.compile_init
    arguments = small_run(script, 12, num_seeds=3, eval_episodes=0)
    assert_finished(call(script, *arguments, "--name", "healthy"))
    monkeypatch.setattr(runner.devices.programs, "compile_init", compile_init)
    assert_finished(call(script, *arguments, "--name", "ill"))

    healthy, ill = directory_of(script, "healthy"), directory_of(script, "ill")
    assert json.loads((healthy / "summary.json").read_text())["diverged_seeds"] == []
    assert json.loads((ill / "summary.json").read_text())["diverged_seeds"] == [1]
    (_, state), (_, ill_state) = saved_state(healthy), saved_state(ill)
    for trial, is_equal in ((0, True), (1, False), (2, True)):
        a, b = ({name: x[trial] for name, x in leaves.items()} for leaves in (state, ill_state))
        assert (differences(a, b) == []) == is_equal, f"trial {trial}"
        metrics = [saved_metrics(directory) for directory in (healthy, ill)]
        a, b = ({name: x[trial] for name, x in m.items() if name != "env_steps"} for m in metrics)
        assert (differences(a, b) == []) == is_equal, f"trial {trial}"


@one
def test_a_metric_that_is_not_measured_is_named_and_hides_no_score(script, monkeypatch):
    """NaN in a metric of the script, from the fifth of twenty iterations on in seed 1: it has learned all the same."""

    def make_segment(*args):
        segment = made(*args)

        def blinded(settings, state, start, stop):
            state, records = segment(settings, state, start, stop)
            iterations = start + jnp.arange(records["entropy"].shape[1])
            is_lost = (jnp.arange(2)[:, None] == 1) & (iterations[None] >= 4)
            return state, records | {"entropy": jnp.where(is_lost, jnp.nan, records["entropy"])}

        blinded.memory_analysis = segment.memory_analysis
        return blinded

    made = runner.devices.programs.compile_segment
    monkeypatch.setattr(runner.devices.programs, "compile_segment", make_segment)
    result = call(script, *small_run(script, 20, name="blind"))
    assert_finished(result)
    config = small_config(script, 20)
    assert f"\nentropy has no finite value from {config.env_steps(4):,} env steps on: seed 1\n" in result.stdout
    assert "diverged" not in result.stdout
    assert "nan" not in result.stdout.rpartition("whole episodes each:")[2]
    assert json.loads((directory_of(script, "blind") / "summary.json").read_text())["diverged_seeds"] == []


# -- Scalars of an environment -----------------------------------------------------------------------------------------


class Told(CartPole):
    """CartPole that tells a scalar of this name: NaN, or infinite, where an episode ends on the left."""

    def __init__(self, scalar, otherwise=jnp.nan):
        super().__init__()
        self.scalar, self.otherwise = scalar, otherwise

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, _ = super().step_env(key, state, action, params)
        return obs, state, reward, terminated, {self.scalar: jnp.where(state.x > 0, state.time, self.otherwise)}


@pytest.mark.parametrize("otherwise", [jnp.nan, jnp.inf])
def test_an_environments_infinite_scalar_is_no_divergence(otherwise, monkeypatch):
    """Logs and pictures skip it."""
    import wandb

    logged, env = [], f"Probe-Told-{otherwise}"
    monkeypatch.setattr(wandb, "init", lambda **_: FakeRun(logged))
    gymnax.register(env, lambda: Told("steps", otherwise))
    arguments = small_run("ppo", env=env, name="told", wandb="offline", eval_episodes=0, num_seeds=3)
    result = call("ppo", *arguments, "--sweep", "gamma=0.9,0.99")
    assert_finished(result)
    assert "diverged" not in result.stdout
    directory = directory_of("ppo", "told", env)
    summary = json.loads((directory / "summary.json").read_text())
    assert [setting["diverged_seeds"] for setting in summary["settings"]] == [[], []]
    assert (directory / "metrics.png").exists()
    metrics = saved_metrics(directory)
    steps = np.where(np.isfinite(metrics["steps"]), metrics["steps"], np.nan)
    assert (np.isnan(steps) & (metrics["num_episodes"] > 0)).any()
    assert all(values["is_healthy"] == 1 for values in logged)
    known = [column[np.isfinite(column)] for setting in np.split(steps, 2) for column in setting.T]
    means = [x.mean() for x in known if len(x)]  # the IQM of up to three seeds
    assert sorted(values["steps"] for values in logged if "steps" in values) == pytest.approx(sorted(means))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, f"the scalar {name} in the info of Probe-Told-{name} has") for name in ("entropy", "policy_loss")),
        *(
            (name, f"info has a scalar {name}, the name of")
            for name in ("seed", "eval_env_steps", "sweep_gamma", "file")
        ),
    ],
)
def test_a_scalar_with_the_name_of_another_metric_is_refused(name, message, folder):
    env = f"Probe-Told-{name}"
    gymnax.register(env, lambda: Told(name))
    assert_refused(call("ppo", *small_run("ppo", env=env)), message)
    assert contents(folder) == {}
