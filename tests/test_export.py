"""python -m runner.export and its player: the ONNX model of a policy acts as the policy does in JAX."""

import dataclasses
import functools
import importlib
import json
import math
import re
import runpy
import shlex
import shutil
import sys
from types import SimpleNamespace

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ROOT, call, capture, execute, small_run
from PIL import Image
from runs import assert_refused

from common.environment import make_env
from runner import render
from runner.export import __main__ as export
from runner.export import policy as models
from runner.export.policy import Model, make_model, make_policy

POLICIES = {
    "ppo": ("CartPole-v1", {}),
    "ppo, continuous": ("Pendulum-v1", {"layer_norm": True, "normalize_obs": True}),
    "ppo, images": ("Breakout-MinAtar", {"activation": "relu"}),
    "ppo, masks": ("pgx/2048", {"normalize_obs": True}),
    "dqn": ("Acrobot-v1", {"layer_norm": True, "activation": "swish"}),
    "sac": ("Pendulum-v1", {"normalize_obs": True}),
    "td3": ("Reacher-misc", {}),
    "categorical_dqn": ("Breakout-MinAtar", {"num_bins": 11}),
    "pqn": ("Breakout-MinAtar", {}),
    "reppo": ("Pendulum-v1", {}),
    "sac_discrete": ("CartPole-v1", {}),
    "ppo_rnn": ("Pendulum-v1", {"normalize_obs": True, "memory_size": 4}),
    "ppo_rnn, lstm": ("CartPole-v1", {"cell": "lstm"}),
}
PLAYER = str(ROOT / "runner" / "export" / "play.py")


def random_arrays(abstract, rng, scale=1.0, n=1):
    """Arrays of the shapes of a State or of inputs; a variance is positive."""

    def draw(path, x):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if x.dtype == bool:
            return rng.random(x.shape) < 0.7
        if jnp.issubdtype(x.dtype, jnp.integer):
            return rng.integers(0, 9, x.shape).astype(x.dtype)
        array = (scale * rng.normal(size=x.shape)).astype(x.dtype)
        return np.abs(array) if "var" in jax.tree_util.keystr(path) else array

    return jax.tree_util.tree_map_with_path(draw, abstract)


@functools.cache
def exported_policy(name):
    """Algorithm, random State, environment and model of one of POLICIES."""
    module, (env, changes) = importlib.import_module(name.partition(",")[0]), POLICIES[name]
    algorithm, env = module.make(module.Config(env=env, **changes)), make_env(env)
    state = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
    state = state.replace(buffer=None) if hasattr(state, "buffer") else state
    state = random_arrays(state, np.random.default_rng(0), 0.3)
    with jax.numpy_rank_promotion("allow"):  # distrax needs it
        return algorithm, state, env, make_model(make_policy(algorithm, state, env), {})


def session_of(model):
    """The model in onnxruntime."""
    import onnxruntime

    return onnxruntime.InferenceSession(model.content)


def metadata_of(session):
    return {name: json.loads(x) for name, x in session.get_modelmeta().custom_metadata_map.items()}


def random_inputs(session, rng, n):
    """Inputs of n observations by their names."""
    kinds = {"tensor(float)": np.float32, "tensor(bool)": bool}
    specs = {x.name: jax.ShapeDtypeStruct((n, *x.shape[1:]), kinds[x.type]) for x in session.get_inputs()}
    return random_arrays(specs, rng)


def assert_same_actions(found, expected):
    """Numbers equal to 1e-5 of their range, discrete actions all but for ties."""
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if jnp.issubdtype(expected.dtype, jnp.integer):
        assert (found == expected).mean() > 0.999
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.ptp(expected))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_a_model_acts_as_jax(name, rank_promotion):
    """The model takes the memory and the part of an observation that it needs, of many observations or one."""
    algorithm, state, env, model = exported_policy(name)
    session = session_of(model)
    inputs = random_inputs(session, np.random.default_rng(1), 2000)
    obs = inputs if isinstance(env.obs_shape, dict) else inputs["obs"]
    expected = jax.tree.leaves(algorithm.act(state, obs, *[inputs[name] for name in inputs if name == "memory"]))
    assert len(np.unique(expected[0])) > 1, "it depends on the observation"
    found, first = (session.run(None, {k: x[:n] for k, x in inputs.items()}) for n in (2000, 1))
    for x, y, one in zip(found, expected, first, strict=True):
        assert_same_actions(x, y)
        assert_same_actions(np.concatenate([one, x[1:]]), y)
    metadata, space = metadata_of(session), env.action_space
    limits = {"n": space.n} if hasattr(space, "n") else {"low": space.low, "high": space.high}
    for key, limit in limits.items():
        np.testing.assert_array_equal(metadata["action_space"][key], np.broadcast_to(limit, space.shape))
    assert ("memory" in inputs) == (metadata["initial_memory"] != {}) == hasattr(algorithm, "initial_memory")


class Table(gymnasium.Env):
    """Episodes of twelve steps with the same observations, which pay the action times the step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-2, 2, (1,))

    def reset(self, seed=None, options=None):
        self.step_count = 0
        return self.observe(), {}

    def step(self, action):
        self.step_count += 1
        return self.observe(), self.step_count * float(action[0]), self.step_count == 12, False, {}

    def observe(self):
        return np.sin(np.arange(3) + 3 * self.step_count)  # float64, as Gymnasium has it


gymnasium.register("Table-v0", Table, disable_env_checker=True)


def play(*words):
    """The result of the player, run in this process."""
    return capture(lambda: runpy.run_path(PLAYER, run_name="__main__"), PLAYER, *map(str, words))


@pytest.mark.slow
def test_the_player_begins_each_episode_with_the_first_memory(tmp_path, rank_promotion):
    algorithm, state, _, model = exported_policy("ppo_rnn")
    (tmp_path / "policy.onnx").write_bytes(model.content)
    env, expected, memory = Table(), 0.0, algorithm.initial_memory(1)
    (obs, _), done = env.reset(), False
    while not done:
        action, memory = algorithm.act(state, obs[None], memory)
        obs, reward, done, *_ = env.step(action[0])
        expected += reward
    result = play(tmp_path / "policy.onnx", "--gymnasium", "Table-v0", "--episodes", "3")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.startswith("Table-v0, 3 episodes: mean ")
    np.testing.assert_allclose([float(x) for x in re.findall(r"-?\d+\.\d+", result.stdout)], expected, atol=0.01)


# -- Edited networks ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        return nn.Dense(3)(x + nn.Dense(16)(nn.gelu(nn.LayerNorm()(x))))


class Attention(nn.Module):
    """Attention over the features."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x[..., None])
        query, key, value = (nn.Dense(8)(x) for _ in range(3))
        weights = nn.softmax(jnp.einsum("...id,...jd->...ij", query, key) / math.sqrt(8))
        return nn.Dense(3)((weights @ value).reshape(*x.shape[:-2], -1))


class Convolution(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), strides=(2, 2))(x))
        return nn.Dense(3)(x.reshape(*x.shape[:-3], -1))


class Loop(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(1.1 * x), None), nn.Dense(3)(x), None, length=4)[0]


class Half(nn.Module):
    dtype: jnp.dtype = jnp.bfloat16

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(16, dtype=self.dtype)(x)))


class Pooled(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.Dense(4)(x), (2, 2))
        return nn.Dense(3)(x.reshape(*x.shape[:-3], -1))


class Complex(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.abs(nn.Dense(3)(x) * (1 + 1j))


class Sized(nn.Module):
    """A network for even numbers of observations alone."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x if x.shape[0] % 2 == 0 else -x)


def policy_of(network, shape):
    """A policy that somebody has changed."""
    params = network.init(jax.random.key(0), jnp.ones((1, *shape)))
    box = SimpleNamespace(low=-1.0, high=1.0, shape=(3,))
    env = SimpleNamespace(obs_shape=shape, obs_dtype=jnp.dtype("float32"), action_space=box)
    return make_policy(SimpleNamespace(act=network.apply), params, env)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape", "tolerance"),
    [
        (Residual(), (5,), 1e-5),
        (Attention(), (5,), 1e-5),
        (Convolution(), (9, 7, 2), 1e-5),
        (Loop(), (5,), 1e-5),
        (Half(), (5,), 0.05),
        (Half(jnp.float16), (5,), 0.01),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_an_edited_network_is_exported_as_it_is(network, shape, tolerance):
    policy = policy_of(network, shape)
    model = make_model(policy, {})
    assert model.is_widened == isinstance(network, Half)
    obs = np.random.default_rng(0).normal(size=(7, *shape)).astype(np.float32)
    (found,) = session_of(model).run(None, {"obs": obs})
    np.testing.assert_allclose(found, np.float32(policy.act(obs)[0]), atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape", "culprit"),
    [
        (Pooled(), (4, 4, 2), r"reduce_window_max of Pooled, .*test_export\.py:\d+.* fails with .*MaxPool"),
        (Complex(), (5,), r"\w+ of Complex, .*test_export\.py:\d+.* fails with .*complex64"),
        (Sized(), (5,), "its outputs differ from act by .*; each of its operations alone is right"),
    ],
)
def test_an_operation_without_a_model_is_named(network, shape, culprit):
    with pytest.raises(ValueError, match=f"this policy has no ONNX model: .*{culprit}"):
        make_model(policy_of(network, shape), {})


@pytest.mark.slow
def test_a_model_that_acts_otherwise_is_refused(monkeypatch):
    policy = policy_of(Residual(), (5,))
    other = dataclasses.replace(policy, act=lambda obs: [0.99 * policy.act(obs)[0]])
    convert, program = models._convert, models._trace(other.act, [jnp.ones((2, 5))])[0]
    monkeypatch.setattr(models, "_convert", lambda _, *names: convert(program, *names))
    monkeypatch.setattr(models, "NUM_CHECKED", (2,))
    monkeypatch.setattr(models, "_find_culprit", lambda *_: "")  # which converts too
    with pytest.raises(ValueError, match=r"no ONNX model: its outputs differ from act by 0\.0"):
        make_model(policy, {})


# -- The command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["ppo", "ppo_rnn"])
def exported(request, tmp_path_factory):
    """The model of a policy that was trained for a moment, and what the command printed."""
    folder = tmp_path_factory.mktemp(request.param)
    run = small_run(request.param, 1, env="CartPole-v1", out=str(folder), name="run", eval_episodes=0)
    assert call(request.param, *run).status == 0
    words = [str(folder / request.param / "CartPole-v1" / "run"), "--seed-index", "1"]
    result = capture(export.main, "export", *words, "--out", str(folder / "policy.onnx"))
    assert (result.status, result.stderr) == (0, "")
    return folder / "policy.onnx", result.stdout


WITHOUT_JAX = "import sys, runpy; sys.modules['jax'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@pytest.mark.slow
def test_the_policy_plays_in_gymnasium_without_jax(exported, folder):
    path, output = exported
    script = path.parent.name.rstrip("0123456789")
    memory = ", next_memory by at most" if script == "ppo_rnn" else "$"
    assert re.search(rf"1,001 random observations: action in 0{memory}", output, re.MULTILINE)
    metadata = metadata_of(session_of(SimpleNamespace(content=path.read_bytes())))
    assert (metadata["script"], metadata["seed"], metadata["config"]["env"]) == (script, 1, "CartPole-v1")
    _, player, *words = shlex.split(output.splitlines()[-1].partition("play: ")[2])
    assert (str(ROOT / player), words) == (PLAYER, [str(path), "--gymnasium", "CartPole-v1"])
    words = [PLAYER, *words, "--episodes", "3", "--render", "episode.gif"]
    result = execute("-c", WITHOUT_JAX, *words, cwd=folder)
    assert (result.status, result.stderr) == (0, "")
    found = re.match(r"CartPole-v1, 3 episodes: mean ([\d.]+), IQM [\d.]+, min ([\d.]+), max", result.stdout)
    assert float(found[1]) >= float(found[2]) > 5
    with Image.open(folder / "episode.gif") as animation:
        assert animation.format == "GIF"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gymnasium", "Acrobot-v1"], "Acrobot-v1 has observations "),
        (["--gymnasium", "Box-v0"], "Box-v0 has actions "),
        (["--gymnasium", "Nothing-v1"], "Environment `Nothing` doesn't exist"),
        (["--gymnasium", "CartPole-v1", "--episodes", "0"], "--episodes must be at least 1, not 0"),
    ],
)
def test_the_player_refuses_what_does_not_fit(exported, words, message):
    box = type("Box", (Table,), {"observation_space": gymnasium.make("CartPole-v1").observation_space})
    gymnasium.registry.pop("Box-v0", None)
    gymnasium.register("Box-v0", box)
    assert_refused(play(exported[0], *words), message)


@pytest.mark.slow
def test_the_python_of_the_page_runs_a_model(folder):
    (folder / "policy.onnx").write_bytes(exported_policy("ppo")[-1].content)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "running.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "onnxruntime" in block)
    result = capture(lambda: exec(block, {}), "page")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout in ("0\n", "1\n")


@pytest.fixture
def copied(undisturbed_ppo, folder):
    """A copy of a run in an empty folder."""
    return shutil.copytree(undisturbed_ppo, folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--seed-index", "2"], "0 to 1"),
        (["run", "--setting-index", "1"], "settings 0 to 0"),
        (["nowhere"], "nowhere"),
        (["run", "--out", "run"], "--out run exists; name a new file"),
        (["run"], f"{ROOT / 'requirements-export.txt'}"),
    ],
)
def test_a_refused_export_leaves_nothing(words, message, copied, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    assert_refused(capture(export.main, "export", *words), message)
    assert [path.name for path in folder.iterdir()] == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", [export, render])
def test_a_run_that_was_evaluated_with_sampled_actions_is_named(tool, copied, monkeypatch):
    monkeypatch.setattr(export, "make_model", lambda *_: Model(b"", {}, False))
    record = json.loads((copied / "config.json").read_text())
    for is_sampled in (True, False):
        record["options"]["eval_sampled"] = is_sampled
        (copied / "config.json").write_text(json.dumps(record))
        words = ["--max-steps", "1"] if tool is render else ["--out", f"{is_sampled}.onnx"]
        result = capture(tool.main, "tool", str(copied), *words)
        assert result.status == 0, result
        assert result.stderr.startswith("note: the run was evaluated with sampled actions; ") == is_sampled


@pytest.mark.slow
def test_the_benchmark_plays_models_in_gymnasium(undisturbed_ppo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    scores = importlib.import_module("gymnasium_scores")
    monkeypatch.setattr(scores, "FINAL_EPISODES", 2)
    monkeypatch.setattr(scores, "folder_of", lambda *_: undisturbed_ppo)
    monkeypatch.setattr(scores, "train", lambda *_: None)
    first, second = scores.scores(scores.PAIRS["ppo/CartPole-v1"], tmp_path)
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["gymnasium"] != second["gymnasium"], "each seed plays other episodes"
    assert 8 <= float(first["gymnasium"]) <= 500
