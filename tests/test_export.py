"""python -m runner.export: a trained policy in numpy, and as a program for JAX."""

import importlib
import math
import re
import runpy
import shutil
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import call, capture, execute, small_run, tiers
from PIL import Image
from runs import assert_refused

from common.environment import make_env
from runner.export import __main__ as export
from runner.export.policy import Policy, make_policy, write_numpy, write_stablehlo
from runner.export.source import translate

POLICIES = {
    "ppo": ("CartPole-v1", {}),
    "ppo, continuous": ("Pendulum-v1", {"layer_norm": True, "normalize_obs": True}),
    "ppo, images": ("Breakout-MinAtar", {"activation": "relu"}),
    "ppo, bytes": ("navix/Navix-Empty-5x5-v0", {}),
    "ppo, masks": ("pgx/2048", {}),
    "dqn": ("CartPole-v1", {"layer_norm": True, "activation": "swish"}),
    "sac": ("Pendulum-v1", {"normalize_obs": True}),
    "td3": ("Reacher-misc", {}),
    "categorical_dqn": ("Breakout-MinAtar", {"num_bins": 11}),
    "pqn": ("Breakout-MinAtar", {}),
    "reppo": ("Pendulum-v1", {}),
    "sac_discrete": ("CartPole-v1", {}),
    "ppo_rnn": ("CartPole-v1", {}),
    "ppo_rnn, lstm": ("CartPole-v1", {"cell": "lstm"}),
}


def random_arrays(abstract, rng, scale=1.0, n=1):
    """Arrays of the shapes of a State or of observations; a variance is positive."""

    def draw(path, x):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        shape = tuple(size if isinstance(size, int) else n for size in x.shape)
        if x.dtype == bool:
            return rng.random(shape) < 0.7
        if jnp.issubdtype(x.dtype, jnp.integer):
            return rng.integers(0, 9, shape).astype(x.dtype)
        array = (scale * rng.normal(size=shape)).astype(x.dtype)
        return np.abs(array) if "var" in jax.tree_util.keystr(path) else array

    return jax.tree_util.tree_map_with_path(draw, abstract)


def policy_of(script, env, changes):
    """A policy with random parameters, and its algorithm."""
    module = importlib.import_module(script)
    algorithm, env = module.make(module.Config(env=env, **changes)), make_env(env)
    state = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
    state = state.replace(buffer=None) if hasattr(state, "buffer") else state
    return make_policy(algorithm, random_arrays(state, np.random.default_rng(0), 0.3), env)


@pytest.mark.parametrize("name", tiers(POLICIES, "ppo, continuous", "ppo, images", "dqn", "ppo_rnn"))
def test_numpy_acts_as_jax(name, tmp_path, rank_promotion):
    policy = policy_of(name.partition(",")[0], *POLICIES[name])
    write_numpy(policy, "a test", tmp_path / "policy")
    act = runpy.run_path(str(tmp_path / "policy" / "policy.py"))["act"]
    inputs = random_arrays(policy.inputs, np.random.default_rng(1), n=10_000 if "," not in name else 50)
    expected = jax.tree.leaves(jax.jit(policy.act)(policy.state, *inputs))
    found = jax.tree.leaves(act(*inputs))
    first = jax.tree.leaves(act(*jax.tree.map(lambda x: x[0], inputs)))
    for x, y, one in zip(expected, found, first, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert one.shape == x.shape[1:]
        assert len(np.unique(y)) > 1, "it depends on the observation"
        if jnp.issubdtype(x.dtype, jnp.integer):
            assert (x == y).mean() > 0.999, "but for ties"
        else:
            tolerance = 1e-5 * np.ptp(x)
            np.testing.assert_allclose(y, x, atol=tolerance)
            np.testing.assert_allclose(one, y[0], atol=tolerance)


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        return nn.Dense(3)(x + nn.Dense(16)(nn.relu(x)))


class Gelu(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.Dense(16)(x), approximate=False)
        return nn.Dense(3)(nn.softplus(nn.Dense(8)(nn.elu(x))))


class Attention(nn.Module):
    """Over the features."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x[..., None])
        query, key, value = (nn.Dense(8)(x) for _ in range(3))
        weights = nn.softmax(jnp.einsum("...id,...jd->...ij", query, key) / math.sqrt(8))
        return nn.Dense(3)((weights @ value).reshape(*x.shape[:-2], -1))


class NoBias(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, use_bias=False)(nn.sigmoid(nn.Dense(16, use_bias=False)(x)))


class Groups(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.RMSNorm()(nn.GroupNorm(2)(nn.Dense(8)(nn.leaky_relu(nn.Dense(16)(x)))))


class Convolution(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), strides=(2, 2))(x))
        return nn.Dense(3)(x.reshape(*x.shape[:-3], -1))


class Loop(nn.Module):
    """What has no translation."""

    @nn.compact
    def __call__(self, x):
        return jax.lax.while_loop(lambda x: (x < 1).any(), lambda x: x + 1, nn.Dense(3)(x))


def edited(network, shape):
    """A policy that somebody has changed."""
    (n,) = jax.export.symbolic_shape("n")
    params = network.init(jax.random.key(0), jnp.zeros((1, *shape)))
    space = SimpleNamespace(shape=(3,))
    return Policy(network.apply, params, (jax.ShapeDtypeStruct((n, *shape), jnp.float32),), None, space)


@pytest.mark.parametrize(
    ("network", "shape"),
    [*((x(), (5,)) for x in (Residual, Gelu, Attention, NoBias, Groups)), (Convolution(), (9, 7, 2))],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_an_edited_network_is_translated_as_it_is(network, shape, tmp_path, rank_promotion):
    policy = edited(network, shape)
    write_numpy(policy, "a test", tmp_path / "policy")
    act = runpy.run_path(str(tmp_path / "policy" / "policy.py"))["act"]
    obs = np.random.default_rng(0).normal(size=(7, *shape)).astype(np.float32)
    np.testing.assert_allclose(act(obs), jax.jit(policy.act)(policy.state, obs), atol=1e-5)


def test_an_operation_without_a_translation_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"not translated to numpy: while, at .*test_export\.py:\d+"):
        write_numpy(edited(Loop(), (5,)), "a test", tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_arithmetic_keeps_its_order_and_types():
    """Brackets stand where Python would compute in another order, and a shape is kept where numpy would drop it."""

    def function(x):
        y = x - (x - (x * 2 - 1)) / (x / (x + 3))
        z = x @ ((x.T * 3) @ -x) ** 2 / jax.lax.rsqrt(x) - (-x)
        whole = (x * 10).astype(jnp.int32)
        return jnp.where((y > 0) & ~(z > 0), y - z, -(y + z)), jnp.zeros_like(x).sum(axis=1), whole / 7

    x = np.random.default_rng(0).uniform(1, 2, (4, 4)).astype(np.float32)
    source = translate(jax.make_jaxpr(function)(x), ["x"])
    names = {"np": np, "arrays": source.arrays, "x": x}
    exec("\n".join(source.lines), names)
    for text, expected in zip(source.outputs, jax.jit(function)(x), strict=True):
        found = eval(text, names)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5)


OPERATIONS = {
    "cumsum": lambda x: jnp.cumsum(x, axis=1),
    "slice": lambda x: jax.lax.slice(x, (0, 1), (4, 6), (1, 2)),
    "squeeze": lambda x: jax.lax.squeeze(x[:, None], (1,)),
    "iota": lambda x: x + jax.lax.broadcasted_iota(jnp.float32, (4, 6), 0),
    "clamp": lambda x: jax.lax.clamp(-0.5, x, 0.7),
    "integer_pow": lambda x: x**3,
    "argmin": lambda x: jnp.argmin(x, axis=1),
    "reduce_and": lambda x: (x > -1).all(axis=1),
    "reduce_min": lambda x: x.min(axis=(0, 1)),
    "logistic": jax.nn.sigmoid,
    "eq": lambda x: (x > 0) == (x < 1),
    "not": lambda x: jnp.where(~jnp.ones((), bool) | (x > 0), x, 0),
    "dot_general": lambda x: x @ jnp.einsum("ij,kj->ik", *np.arange(72, dtype=np.float32).reshape(2, 6, 6)),
    "erf": lambda x: jax.lax.erf(x) - x,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_jax(name):
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    program = jax.make_jaxpr(OPERATIONS[name])(x)
    source = translate(program, ["x"])
    names = {"np": np, "math": math, "arrays": source.arrays, "x": x}
    exec("\n".join([*source.helpers, *source.lines]), names)
    found, expected = eval(source.outputs[0], names), OPERATIONS[name](x)
    assert name in str(program)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_program_for_jax_takes_any_number_of_observations(tmp_path):
    policy = policy_of("sac", "Pendulum-v1", {})
    write_stablehlo(policy, tmp_path / "policy")
    program = jax.export.deserialize((tmp_path / "policy" / "policy.stablehlo").read_bytes())
    assert program.platforms == ("cpu", "cuda", "tpu")
    for n in (1, 3):
        obs = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
        np.testing.assert_allclose(program.call(obs), policy.act(policy.state, obs), atol=1e-6)


# -- The command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["ppo", "ppo_rnn"])
def exported(request, tmp_path_factory):
    """The folder of a policy that was trained for a moment, and what the command printed."""
    folder = tmp_path_factory.mktemp(request.param)
    run = small_run(request.param, 1, env="CartPole-v1", out=str(folder), name="run", eval_episodes=0)
    assert call(request.param, *run).status == 0
    words = [str(folder / request.param / "CartPole-v1" / "run"), "--seed-index", "1", "--out", str(folder / "policy")]
    result = capture(export.main, "export", *words)
    assert (result.status, result.stderr) == (0, "")
    return folder / "policy", result.stdout


WITHOUT_JAX = "import sys, runpy; sys.modules['jax'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@pytest.mark.slow
def test_the_policy_plays_in_gymnasium_without_jax(exported, folder):
    path, output = exported
    head = r'r"""A policy trained with ppo(_rnn)? on CartPole-v1, commit \w+:\n.*/run, seed index 1\.'
    assert re.match(head, (path / "policy.py").read_text())
    assert "actor/Dense_0/kernel" in np.load(path / "policy.npz")
    assert output.splitlines()[-1].endswith(f"python {path / 'policy.py'} --gymnasium CartPole-v1")
    words = ["--gymnasium", "CartPole-v1", "--episodes", "3", "--render", "episode.gif"]
    result = execute("-c", WITHOUT_JAX, str(path / "policy.py"), *words, cwd=folder)
    assert (result.status, result.stderr) == (0, "")
    found = re.match(r"CartPole-v1, 3 episodes: mean ([\d.]+), IQM [\d.]+, min ([\d.]+), max", result.stdout)
    assert float(found[1]) >= float(found[2]) > 5
    with Image.open(folder / "episode.gif") as animation:
        assert animation.format == "GIF"


@pytest.mark.slow
def test_the_printed_lines_use_the_program_for_jax(exported, tmp_path):
    (run,) = exported[0].parent.glob("*/CartPole-v1/run")
    result = capture(export.main, "export", str(run), "--jax", "--out", str(tmp_path / "program"))
    _, *lines = result.stdout.splitlines()
    names = {"n": 3, "obs": np.zeros((3, 4), np.float32)}
    exec("\n".join(line.strip() for line in lines), names)
    assert names["action"].shape == (3,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gymnasium", "Acrobot-v1"], "Acrobot-v1 has observations (6,), the policy takes (4,)"),
        (["--gymnasium", "Nothing-v1"], "Environment `Nothing` doesn't exist"),
        (["--gymnasium", "CartPole-v1", "--episodes", "0"], "--episodes must be at least 1, not 0"),
    ],
)
def test_a_policy_refuses_another_environment(exported, words, message, folder):
    program = str(exported[0] / "policy.py")
    result = capture(lambda: runpy.run_path(program, run_name="__main__"), program, *words)
    assert result.status == 2
    assert f"policy.py: error: {message}" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--seed-index", "2"], "0 to 1"),
        (["run", "--setting-index", "1"], "settings 0 to 0"),
        (["run", "--jax", "--seed-index", "-1"], "0 to 1"),
        (["damaged"], "no checkpoint"),
        (["nowhere"], "nowhere"),
    ],
)
def test_a_policy_that_is_not_there_leaves_nothing(words, message, undisturbed_ppo, folder):
    shutil.copytree(undisturbed_ppo, folder / "run")
    shutil.copytree(undisturbed_ppo, folder / "damaged", ignore=shutil.ignore_patterns("checkpoint*"))
    assert_refused(capture(export.main, "export", *words, "--out", "policy"), message)
    assert sorted(path.name for path in folder.iterdir()) == ["damaged", "run"]


@pytest.mark.slow
def test_a_folder_that_exists_is_not_written(exported):
    path, _ = exported
    before = sorted(path.iterdir())
    assert_refused(capture(export.main, "export", "nothing", "--out", str(path)), "exists; name a new folder")
    assert sorted(path.iterdir()) == before
