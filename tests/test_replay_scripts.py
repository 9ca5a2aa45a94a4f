"""DQN, SAC and TD3: the formulas of SAC and TD3 against numpy, and the promised numbers of updates."""

import importlib
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dqn
import sac
import td3
from common.buffer import read
from common.random import correlate
from runner.devices.placement import compile_segment, make_placement

pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]

SMALL = {
    "learning_starts": 24,
    "steps_per_iteration": 24,
    "batch_size": 8,
    "buffer_size": 60,
    "hidden_sizes": (8,),
    "total_timesteps": 24 + 3 * 24,
}
CONFIGS = {
    "dqn": dqn.Config(**SMALL, target_interval=24),
    "sac": sac.Config(**SMALL),
    "td3": td3.Config(**SMALL),
}


@pytest.mark.quick
@pytest.mark.parametrize("noise_steps", [2, 20])
def test_noise_is_correlated_in_time_and_of_unit_variance(noise_steps):
    """1,000 processes, 300 steps: variance 1 and autocorrelation (1 - 1 / noise_steps) ** lag."""
    normals = jax.random.normal(jax.random.key(0), (300, 1000))
    body = lambda noise, normal: correlate(noise, normal, noise_steps)
    noise = np.asarray(jax.lax.scan(body, jnp.zeros(1000), normals)[1])[150:]
    assert abs(noise.mean()) < 0.05
    for lag in (0, 1, 5, 20):
        expected = (1 - 1 / noise_steps) ** lag
        assert abs((noise[: 150 - lag] * noise[lag:]).mean() - expected) < 0.05


@pytest.mark.parametrize("script", [pytest.param("sac", marks=pytest.mark.quick), "td3"])
def test_exploration_follows_the_noise(script):
    """With a policy that says 0, and std 0.5 for SAC, the stored actions are the noise, scaled, squashed or clipped."""
    config = replace(CONFIGS[script], num_envs=2, train_interval=8, gradient_steps=2, noise_steps=20)
    config = replace(config, **({"exploration_noise": 0.5} if script == "td3" else {}))
    algorithm = importlib.import_module(script).make(config)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    actor = jax.tree.map(jnp.zeros_like, state.params.actor)
    if script == "sac":
        actor["params"]["Dense_1"]["bias"] += jnp.log(0.5)  # of log_std
    rates = {"actor_learning_rate": 0.0, "critic_learning_rate": 0.0}
    step = jax.jit(importlib.import_module(script).make(replace(config, **rates)).step)
    state, _ = step(state.replace(params=state.params._replace(actor=actor)), 0)
    actions = np.asarray(read(state.buffer, np.arange(24, 48)).action).reshape(12, 2)  # [steps, num_envs]
    noise = (np.arctanh(actions) if script == "sac" else actions) / 0.5
    np.testing.assert_allclose(noise[-1], np.ravel(state.noise), rtol=1e-4)
    assert (np.abs(np.diff(noise, axis=0)) < 4 * np.sqrt(1 - 0.95**2)).all()
    assert (noise[:, 0] != noise[:, 1]).all()


@pytest.mark.parametrize(("most", "expected"), [(0.5, [0.1, 0.2, 0.3, 0.4, 0.5]), (0.0, [0.1] * 5)])
def test_the_noise_of_td3_spreads_over_the_environments(most, expected):
    """With a policy that says 0, the stored actions are the noise; a lower maximum changes nothing."""
    config = replace(td3.Config(**SMALL), num_envs=5, learning_starts=25, batch_size=5, train_interval=5)
    config = replace(config, steps_per_iteration=2000, buffer_size=2000, gradient_steps=2, total_timesteps=3000)
    config = replace(config, actor_learning_rate=0.0, exploration_noise_max=most)
    algorithm = td3.make(config)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    state = state.replace(params=state.params._replace(actor=jax.tree.map(jnp.zeros_like, state.params.actor)))
    state, _ = jax.jit(algorithm.step)(state, 0)
    actions = np.asarray(read(state.buffer, np.arange(2000)).action).reshape(400, 5)  # [steps, num_envs]
    std = np.roll(actions, -25 % 5, axis=1).std(axis=0)
    np.testing.assert_allclose(std, expected, rtol=0.1)  # of 400 draws: an error of 3.5 %


@pytest.mark.parametrize("script", ["dqn", "sac", "td3", "sac_discrete"])
def test_rewards_are_scaled(script):
    module = importlib.import_module(script)
    env = {"env": "Pendulum-v1" if script in ("sac", "td3") else "MountainCar-v0"}
    config = module.Config(**SMALL | env)
    rewards = [
        read(jax.jit(module.make(x).init)(jax.random.key(0)).buffer, np.arange(8)).reward
        for x in (config, replace(config, reward_scale=4.0))
    ]
    assert (rewards[0] < 0).all()
    np.testing.assert_array_equal(rewards[1], 4 * rewards[0])


@pytest.mark.parametrize("script", ["sac", "td3"])
def test_correlated_noise_has_unit_variance_from_the_first_step(script):
    config = replace(CONFIGS[script], num_envs=24, train_interval=24, gradient_steps=2, noise_steps=20)
    init = jax.jit(jax.vmap(importlib.import_module(script).make(config).init))
    noise = np.asarray(init(jax.vmap(jax.random.key)(jnp.arange(40))).noise)
    assert noise.shape == (40, 24, 1)
    assert abs(noise.std() - 1) < 0.1
    assert abs(noise.mean()) < 0.1
    assert len(np.unique(noise)) == noise.size


def test_smoothing_clips_the_noise_and_the_action():
    action, noise = jnp.array([[0.0], [0.0], [0.9]]), jnp.array([[0.2], [3.0], [0.4]])
    np.testing.assert_allclose(td3.smooth(action, noise, 0.5), [[0.2], [0.5], [1.0]], rtol=1e-6)


def test_squashed_log_prob_is_a_density():
    """Numerically: the density over (-1, 1) integrates to 1, and equals the change of variables."""
    x = np.linspace(-8, 8, 20_001).astype(np.float32)
    action, log_prob = sac.squash(x[:, None], stats.norm.logpdf(x, 0.3, 0.8).astype(np.float32))
    assert abs(np.trapezoid(np.exp(log_prob), action[:, 0]) - 1) < 1e-3
    near = np.abs(x) < 2
    expected = stats.norm.logpdf(x, 0.3, 0.8) - np.log1p(-(np.tanh(x.astype(np.float64)) ** 2))
    np.testing.assert_allclose(np.asarray(log_prob)[near], expected[near], rtol=1e-4, atol=1e-5)


def test_squashing_is_finite_far_in_the_tails():
    def log_prob(x):
        return sac.squash(jnp.full(1, x), jnp.float32(0))[1]

    for x in (-1e3, -30.0, 30.0, 1e3):
        assert np.isfinite(log_prob(x))
        assert np.isfinite(jax.grad(log_prob)(x))


def test_twin_critics_start_different():
    torso = partial(sac.Torso, hidden_sizes=(8,), activation="relu", layer_norm=False)
    params = sac.TwinCritic(torso).init(jax.random.key(0), jnp.zeros((1, 3)), jnp.zeros((1, 1)))
    for kernel in (x for x in jax.tree.leaves(params) if x.ndim == 3):
        assert (kernel[0] != kernel[1]).any()


def test_the_actor_of_td3_starts_neither_at_rest_nor_at_the_bounds():
    """At rest MuJoCo's Ant stands still, which pays, and does not learn to walk."""
    torso = partial(td3.Torso, hidden_sizes=(256, 256), activation="relu", layer_norm=False)
    actor, obs = td3.Actor(8, torso), jax.random.normal(jax.random.key(1), (1000, 27))
    actions = actor.apply(actor.init(jax.random.key(0), obs), obs)
    spread = np.asarray(actions).std(axis=0)
    assert (spread > 0.05).all()
    assert (spread < 0.5).all()


def count(opt_state):
    """Adam's own count of updates."""
    return int(next(x for x in jax.tree.leaves(opt_state) if x.dtype == jnp.int32 and x.ndim == 0))


@pytest.mark.parametrize(("script", "num_envs"), [("dqn", 1), ("dqn", 4), ("dqn", 8), ("sac", 8), ("td3", 1)])
def test_updates_are_those_that_are_promised(script, num_envs):
    """The optimizer's own count, the rows of the buffer, and DQN's target: synchronised when it is due."""
    config = replace(CONFIGS[script], num_envs=num_envs, train_interval=4, gradient_steps=2)
    is_due = num_envs != 4  # at the end, after 72 env steps
    if script == "dqn":
        config = replace(config, target_interval=24 if is_due else 48)
    state, _ = jax.jit(importlib.import_module(script).make_train(config))(jax.random.key(0))
    promised = 3 * 24 * 2 // 4
    if script == "dqn":
        assert count(state.opt_state) == promised
        pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(state.target_params), strict=True)
        assert all((online == target).all() for online, target in pairs) == is_due
    else:
        assert count(state.opt_state["critic"]) == promised
        assert count(state.opt_state["actor"]) == promised // (2 if script == "td3" else 1)
    assert int(state.buffer.size) == 60
    assert int(state.buffer.count) == 24 + 3 * 24


PRIME = 1_000_003  # rows of a buffer, a number that nothing else in the program has


@pytest.mark.parametrize(
    ("script", "num_envs", "num_seeds", "n_step"),
    [("sac", 1, 1, 1), ("dqn", 2, 1, 1), ("td3", 1, 2, 3)],
)
def test_the_loop_works_on_the_buffer_in_place(script, num_envs, num_seeds, n_step):
    """The compiled program of a segment has no copy of a buffer, and needs less memory than its smallest array has.

    One environment with an update after each step is the hard case: loops of one turn are no loops to the compiler.
    """
    config = replace(CONFIGS[script], num_envs=num_envs, n_step=n_step, buffer_size=PRIME)
    algorithm, trials = importlib.import_module(script).make(config), make_placement(num_seeds, 99)
    state = trials.abstract(jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0)))
    program = compile_segment(lambda settings: algorithm, trials, {}, state, capacity=2)
    copies = [line for line in program.as_text().splitlines() if re.search(rf"= \S*{PRIME}\S* copy\(", line)]
    assert copies == []
    assert str(PRIME) in program.as_text()
    assert program.memory_analysis().temp_size_in_bytes < PRIME / 2  # terminated has a byte in each row
