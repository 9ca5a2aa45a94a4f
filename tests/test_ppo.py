"""PPO against plain numpy: advantages, losses, gradients, optimizer, minibatches. Learning: test_ppo_probes.py."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from helpers import tiers
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Adam, global_norm, mlp, normalized, numerical_gradient, to_float64
from scipy.stats import chisquare

from common.random import shuffle
from ppo import Config, Torso, Transition, gae, make

probes.register()


pytestmark = pytest.mark.usefixtures("rank_promotion")


# -- gae ---------------------------------------------------------------------------------------------------------------

jitted_gae = jax.jit(gae)
SHAPES = [(1, 1), (2, 3), (7, 1), (8, 4)]
FRACTIONS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


def random_transitions(seed, num_steps, num_envs):
    """Transitions of which only what gae reads is filled, values and next values; all four pairs of flags occur."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    reward, value = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    flags = {name: rng.random(shape) < 0.4 for name in ("terminated", "truncated")}
    rest = dict.fromkeys(("obs", "action", "next_obs"), np.zeros(shape, np.float32))
    return Transition(reward=reward, **flags, **rest), value, rng.normal(size=shape).astype(np.float32)


def gae_loop(reward, value, next_value, terminated, truncated, gamma, gae_lambda):
    """Equation 16 of Schulman et al. 2016, one number at a time; arrays [num_steps, num_envs]."""
    num_steps, num_envs = reward.shape
    advantage = np.zeros((num_steps, num_envs))
    for i in range(num_envs):
        following = 0.0
        for t in reversed(range(num_steps)):
            future = 0.0 if terminated[t, i] else gamma * float(next_value[t, i])
            delta = float(reward[t, i]) + future - float(value[t, i])
            if terminated[t, i] or truncated[t, i]:
                following = 0.0
            following = delta + gamma * gae_lambda * following
            advantage[t, i] = following
    return advantage, advantage + value


def gae_of(transitions, value, next_value, gamma, gae_lambda):
    arrays = {name: np.asarray(getattr(transitions, name)) for name in ("reward", "terminated", "truncated")}
    return gae_loop(**arrays, value=value, next_value=next_value, gamma=gamma, gae_lambda=gae_lambda)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), FRACTIONS, FRACTIONS)
def test_gae_equals_a_loop(seed, shape, gamma, gae_lambda):
    inputs = (*random_transitions(seed, *shape), gamma, gae_lambda)
    for actual, wanted in zip(jitted_gae(*inputs), gae_of(*inputs), strict=True):
        assert actual.shape == shape
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(
    st.integers(0, 10**6), st.sampled_from([1, 3, 7]), st.sampled_from(["terminated", "truncated", "both", "lambda 0"])
)
def test_gae_does_not_depend_on_where_the_rollout_is_cut(seed, cut, where):
    """At the end of an episode the cut changes nothing; with lambda 0 no cut does: the next value is on every row."""
    transitions, *values = random_transitions(seed, 8, 2)
    for flag in ("terminated", "truncated"):
        if where in (flag, "both"):
            getattr(transitions, flag)[cut - 1] = True
    gae_lambda = 0.0 if where == "lambda 0" else 0.95
    whole = jitted_gae(transitions, *values, 0.99, gae_lambda)
    halves = [
        jitted_gae(*jax.tree.map(lambda x, rows=rows: x[rows], (transitions, *values)), 0.99, gae_lambda)
        for rows in (slice(None, cut), slice(cut, None))
    ]
    for i in range(2):
        np.testing.assert_allclose(np.concatenate([half[i] for half in halves]), whole[i], rtol=1e-6, atol=1e-6)


def test_gae_by_hand():
    """Two steps, gamma 0.5, lambda 0.5: the flags at the first step make four different advantages."""
    column = lambda *x: jnp.array(x, jnp.float32)[:, None]
    rest = dict.fromkeys(("obs", "action", "next_obs"), column(0, 0))
    expected = {(False, False): 4.5, (False, True): 4.0, (True, False): 0.0, (True, True): 0.0}
    for (terminated, truncated), advantage in expected.items():
        flags = {"terminated": jnp.array([[terminated], [False]]), "truncated": jnp.array([[truncated], [False]])}
        transitions = Transition(reward=column(1, 2), **flags, **rest)
        # the last delta is 2 + 0.5 * 8 - 4 = 2, the first 1 + 0.5 * 8 - 1 = 4, or 1 - 1 = 0 where nothing follows
        actual, target = gae(transitions, column(1, 4), column(8, 8), 0.5, 0.5)
        np.testing.assert_allclose(actual[:, 0], [advantage, 2.0])
        np.testing.assert_allclose(target[:, 0], [advantage + 1, 6.0])


# -- shuffle -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 9, 511, 512, 513, 5_000])
def test_shuffle_has_every_row_once(num_rows):
    keys = jax.random.split(jax.random.key(num_rows), 100)
    orders = jax.jit(jax.vmap(shuffle, in_axes=(0, None)), static_argnums=1)(keys, num_rows)
    np.testing.assert_array_equal(np.sort(orders, axis=1), [np.arange(num_rows)] * len(keys))


def test_shuffle_makes_all_orders_equally_often():
    keys = jax.random.split(jax.random.key(0), 24_000)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: shuffle(key, 4)))(keys))
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 1e-3
    assert chisquare(counts + 500 * (np.arange(24) == 0)).pvalue < 1e-3, "one order half too often would be seen"


def test_a_minibatch_of_one_row_is_refused():
    """Its normalised advantage is 0, and nothing would be learned."""
    make(replace(SMALL, num_minibatches=SMALL.steps_per_iteration // 2))
    with pytest.raises(ValueError, match=r" = (\d+) must be a multiple of num_minibatches = \1, at least 2 times"):
        make(replace(SMALL, num_minibatches=SMALL.steps_per_iteration))


def test_all_rows_are_in_all_minibatches_equally_often():
    keys = jax.random.split(jax.random.key(0), 2_000)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: shuffle(key, 512)))(keys))
    counts = np.stack([np.bincount(rows.ravel(), minlength=512) for rows in np.split(orders, 4, axis=1)])  # [4, 512]
    deviations = (counts - 500) / np.sqrt(2_000 * 0.25 * 0.75)
    assert abs(deviations).max() < 5
    assert abs(deviations.std() - 1) < 0.1


# -- One iteration against numpy ---------------------------------------------------------------------------------------

SMALL = Config(env="Probe-Recorder", num_envs=3, num_steps=16, total_timesteps=100, hidden_sizes=(8,))
UPDATES = replace(SMALL, num_epochs=3, num_minibatches=1, learning_rate=0.05, clip_eps=0.1, ent_coef=0.1, gamma=0.9)
CONTINUOUS = {"env": "Probe-Recorder-Continuous"}
CASES = {
    "discrete": replace(UPDATES, max_grad_norm=1e9, anneal_learning_rate=False, adam_eps=0.01),
    "discrete, clipped value": replace(UPDATES, clip_value=True, vf_coef=0.8, activation="relu"),
    "continuous, clipped value, normalised": replace(
        UPDATES, **CONTINUOUS, clip_value=True, normalize_obs=True, normalize_reward=True, hidden_sizes=(6, 5)
    ),
    "layer norm": replace(UPDATES, layer_norm=True, hidden_sizes=(6, 5), gae_lambda=0.5),
}


@cache
def compiled(config):
    algorithm = make(config)
    return algorithm, jax.jit(algorithm.init), jax.jit(algorithm.step)


def forward(config, params, obs):
    """Policy outputs [..., n] and values [...]."""
    networks = (x["params"] for x in (params.actor, params.critic))
    outputs, value = (mlp(x.get("Torso_0", {}), x["Dense_0"], obs, config.activation) for x in networks)
    return outputs, value[..., 0]


def log_prob_and_entropy(params, outputs, action):
    if "log_std" not in params.actor["params"]:
        log_probs = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
        return np.take_along_axis(log_probs, action[..., None], -1)[..., 0], -(np.exp(log_probs) * log_probs).sum(-1)
    log_std = params.actor["params"]["log_std"]
    z = (action - outputs) / np.exp(log_std)
    density = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
    entropy = np.sum(log_std + 0.5 * np.log(2 * np.pi * np.e))
    return density.sum(-1), np.full(outputs.shape[:-1], entropy)


def reference_loss(config, params, batch, forward=forward):
    outputs, value = forward(config, params, batch["obs"])
    log_prob, entropy = log_prob_and_entropy(params, outputs, batch["action"])
    advantage = (batch["advantage"] - batch["advantage"].mean()) / batch["advantage"].std()
    ratio = np.exp(log_prob - batch["log_prob"])
    pessimistic = np.where(
        advantage > 0, np.minimum(ratio, 1 + config.clip_eps), np.maximum(ratio, 1 - config.clip_eps)
    )
    policy_loss = -np.mean(pessimistic * advantage)
    squared_error = (value - batch["target"]) ** 2
    if config.clip_value:
        clipped = np.clip(value, batch["value"] - config.clip_eps, batch["value"] + config.clip_eps)
        squared_error = np.maximum(squared_error, (clipped - batch["target"]) ** 2)
    value_loss = np.mean(squared_error) / 2
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy.mean(),
        "approx_kl": np.mean(ratio - 1 - np.log(ratio)),
        "clip_fraction": np.mean((ratio < 1 - config.clip_eps) | (ratio > 1 + config.clip_eps)),
    }
    return policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy.mean(), metrics


def reference_updates(config, params, batch, adam, iteration, forward=forward):
    """All epochs over the whole batch; adam remembers what came before."""
    records = []
    for _ in range(config.num_epochs):
        _, metrics = reference_loss(config, params, batch, forward)
        grads = numerical_gradient(lambda params: reference_loss(config, params, batch, forward)[0], params)
        norm = global_norm(grads)
        records.append(metrics | {"grad_norm": norm})
        grads = jax.tree.map(lambda x, norm=norm: x * min(1.0, config.max_grad_norm / norm), grads)
        share = 1 - iteration / config.num_iterations if config.anneal_learning_rate else 1.0
        params = adam.step(params, grads, share * config.learning_rate, config.adam_eps)
    return params, {name: np.mean([record[name] for record in records]) for name in records[0]}


def scale_rewards_loop(reward, done, gamma):
    """Rewards [num_steps, num_envs] since the beginning, divided by the std of the discounted returns so far."""
    returns = np.zeros(reward.shape)
    for i in range(reward.shape[1]):
        discounted = 0.0
        for t in range(reward.shape[0]):
            discounted = gamma * discounted + reward[t, i]
            returns[t, i] = discounted
            if done[t, i]:
                discounted = 0.0
    return np.clip(reward / np.sqrt(returns.var() + 1e-8), -10, 10)


def reference_batch(config, params, state, record, iteration):
    """The data of an iteration's updates: the record of the environments and the State before it."""
    rows = slice(iteration * config.num_steps, (iteration + 1) * config.num_steps)
    history = jax.tree.map(lambda x: np.moveaxis(np.asarray(x), 0, 1)[: rows.stop], record.replace(count=record.obs))
    done = history.terminated | history.truncated
    reward = scale_rewards_loop(history.reward, done, config.gamma) if config.normalize_reward else history.reward
    obs, next_obs = history.obs[rows], history.next_obs[rows]
    obs, next_obs = (normalized(state.obs_statistics, x) for x in (obs, next_obs))
    action = history.action[rows]
    if config.env in CONTINUOUS.values():
        low, high = np.array(probes.TWO_DIMENSIONS.low), np.array(probes.TWO_DIMENSIONS.high)
        action = 2 * (action.astype(np.float64) - low) / (high - low) - 1
        assert np.abs(action).max() < 0.999, "a clipped action cannot be told from the record"
    outputs, value = forward(config, params, obs)
    log_prob, _ = log_prob_and_entropy(params, outputs, action)
    flags = history.terminated[rows], history.truncated[rows]
    advantage, target = gae_loop(
        reward[rows], value, forward(config, params, next_obs)[1], *flags, config.gamma, config.gae_lambda
    )
    batch = {
        "obs": obs,
        "action": action,
        "log_prob": log_prob,
        "value": value,
        "advantage": advantage,
        "target": target,
    }
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in batch.items()}


def reference_episodes(record, config, iteration):
    """Raw returns and lengths of the episodes that ended in an iteration."""
    returns, lengths = [], []
    for i in range(config.num_envs):
        total, length = 0.0, 0
        for t in range((iteration + 1) * config.num_steps):
            total, length = total + float(record.reward[i, t]), length + 1
            if record.terminated[i, t] or record.truncated[i, t]:
                if t >= iteration * config.num_steps:
                    returns.append(total)
                    lengths.append(length)
                total, length = 0.0, 0
    return {"episode_return": np.mean(returns), "episode_length": np.mean(lengths), "num_episodes": len(returns)}


@pytest.mark.parametrize("case", tiers(CASES, "discrete, clipped value", "continuous, clipped value, normalised"))
def test_an_iteration_equals_numpy(case):
    """Parameters and metrics after two iterations of three updates on the whole batch."""
    config = CASES[case]
    algorithm, init, step = compiled(config)
    state = init(jax.random.key(2))  # others move too little, as asserted below
    if "log_std" in state.params.actor["params"]:  # narrow, so that the box clips no action; different per dimension
        actor = {"params": state.params.actor["params"] | {"log_std": jnp.array([-2.0, -1.7])}}
        state = state.replace(params=state.params._replace(actor=actor))
    params = to_float64(state.params)
    adam = Adam(params)
    for iteration in range(2):
        before, (state, metrics) = state, step(state, iteration)
        record = probes.recorded(state.env_state)
        batch = reference_batch(config, to_float64(before.params), before, record, iteration)
        params, expected = reference_updates(config, to_float64(before.params), batch, adam, iteration)
        moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), params, to_float64(before.params))
        assert min(jax.tree.leaves(moved)) > 0.005
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-4), state.params, params)
        mean = optax.tree_utils.tree_get(state.opt_state, "mu")
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), mean, adam.mean)

        expected |= reference_episodes(record, config, iteration)
        residual = batch["target"] - batch["value"]
        expected["explained_variance"] = 1 - residual.var() / batch["target"].var()
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
        assert metrics["clip_fraction"] > 0.05, (
            "the ratios have to leave the trust region for this test to say anything"
        )

        obs = record.next_obs[0]
        outputs, value = forward(config, to_float64(before.params), normalized(before.obs_statistics, obs))
        action = algorithm.act(before, obs)
        np.testing.assert_allclose(algorithm.value(before, obs), value, rtol=1e-4, atol=1e-5)
        if config.env in CONTINUOUS.values():
            low, high = np.array(probes.TWO_DIMENSIONS.low), np.array(probes.TWO_DIMENSIONS.high)
            expected_action = (low + high) / 2 + np.clip(outputs, -1, 1) * (high - low) / 2
            np.testing.assert_allclose(action, expected_action, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(action, outputs.argmax(axis=-1))


def test_images_pass_a_convolution():
    """The product of patches and kernel is the 3x3 convolution that the documentation names."""
    torso = Torso((6, 7, 4), hidden_sizes=(), activation="tanh", layer_norm=True)
    images = jax.random.normal(jax.random.key(0), (5, 2, 6, 7, 4))
    params = torso.init(jax.random.key(1), images)
    kernel, bias = params["params"]["Dense_0"]["kernel"], params["params"]["Dense_0"]["bias"] + 0.1
    params = {"params": {"Dense_0": {"kernel": kernel, "bias": bias}}}
    kernel = kernel.reshape(3, 3, 4, 16)
    layout = ("NHWC", "HWIO", "NHWC")
    features = jax.lax.conv_general_dilated(
        images.reshape(10, 6, 7, 4), kernel, (1, 1), "VALID", dimension_numbers=layout
    )
    expected = jnp.maximum(features + bias, 0).reshape(5, 2, 4 * 5 * 16)
    np.testing.assert_allclose(torso.apply(params, images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (3,), (10, 5), (2, 5, 3), (3, 3, 3, 3)])
def test_other_observations_are_flattened(shape):
    """Row by row, behind any number of leading axes; an image too small for a 3x3 convolution is flattened too."""
    torso = Torso(shape, hidden_sizes=(), activation="tanh", layer_norm=True)
    for leading in ((), (4,), (2, 4)):
        obs = np.arange(np.prod(leading + shape, dtype=int)).reshape(leading + shape)
        np.testing.assert_array_equal(torso.apply({}, obs), obs.reshape(*leading, -1))


# -- On policy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["Probe-Recorder", "Probe-Recorder-Continuous"])
def test_the_first_minibatch_is_on_policy(env):
    """The only update of an iteration sees ratio 1: its loss is minus the mean of normalised advantages, which is 0."""
    config = replace(SMALL, env=env, num_epochs=1, num_minibatches=1, learning_rate=0.1, total_timesteps=10_000)
    _, init, step = compiled(replace(config, normalize_obs=True, normalize_reward=True))
    state = init(jax.random.key(0))
    for iteration in range(5):
        before, (state, metrics) = state, step(state, iteration)
        assert abs(metrics["approx_kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0
        assert abs(metrics["policy_loss"]) < 1e-5
        assert not np.array_equal(
            before.params.actor["params"]["Dense_0"]["kernel"], state.params.actor["params"]["Dense_0"]["kernel"]
        )


SWEPT = replace(SMALL, **CONTINUOUS, num_epochs=2, num_minibatches=3, normalize_obs=True, normalize_reward=True)


@cache
def step_with_learning_rate():
    """(state, iteration, learning_rate) -> (state, metrics), compiled once for all; a run of two iterations."""
    return jax.jit(lambda state, iteration, rate: make(replace(SWEPT, learning_rate=rate)).step(state, iteration))


def test_with_learning_rate_zero_every_minibatch_is_on_policy():
    step = step_with_learning_rate()
    state = compiled(SWEPT)[1](jax.random.key(1))
    state, metrics = step(state, 0, 0.05)
    assert metrics["approx_kl"] > 1e-4
    frozen, metrics = step(state, 0, 0.0)
    assert abs(metrics["approx_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0
    assert abs(metrics["policy_loss"]) < 1e-5
    jax.tree.map(np.testing.assert_array_equal, frozen.params, state.params)


# -- Counting ----------------------------------------------------------------------------------------------------------


def counts(opt_state):
    return [int(count) for _, count in optax.tree_utils.tree_get_all_with_path(opt_state, "count")]


def test_updates_are_counted_and_the_learning_rate_ends_at_zero():
    assert SWEPT.num_iterations == 2, "total_timesteps is rounded down to whole iterations"
    step = step_with_learning_rate()
    state = compiled(SWEPT)[1](jax.random.key(2))
    assert set(counts(state.opt_state)) == {0}
    moved = []
    for iteration in range(4):
        before, (state, _) = state, step(state, iteration, 0.05)
        assert set(counts(state.opt_state)) == {(iteration + 1) * SWEPT.num_epochs * SWEPT.num_minibatches}
        assert state.obs_statistics.count == (iteration + 1) * SWEPT.num_envs * SWEPT.num_steps
        distances = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), state.params, before.params)
        moved.append(max(jax.tree.leaves(distances)))
    assert moved[0] > moved[1] > 0
    assert max(moved[2:]) < 1e-6, "beyond the planned end the learning rate stays at 0, to rounding"


def test_observation_statistics_are_those_of_all_observations():
    state = compiled(SWEPT)[1](jax.random.key(5))
    for _ in range(2):
        state, _ = step_with_learning_rate()(state, 0, 0.05)
    obs = np.asarray(probes.recorded(state.env_state).obs, np.float64)[:, : 2 * SWEPT.num_steps].reshape(-1, 3)
    np.testing.assert_allclose(state.obs_statistics.mean, obs.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(state.obs_statistics.variance, obs.var(axis=0), rtol=1e-5)


# -- Minibatches -------------------------------------------------------------------------------------------------------

CLOCK = Config(
    env="Probe-Clock",
    total_timesteps=10**6,
    num_envs=1,
    num_steps=16,
    num_epochs=2,
    num_minibatches=4,
    hidden_sizes=(),
    learning_rate=0.0,
    anneal_learning_rate=False,
    max_grad_norm=1e9,
    ent_coef=0.0,
    vf_coef=0.5,
    gamma=0.9,
)


def test_minibatches_have_each_row_once_an_epoch():
    """Adam's first moment remembers which update a row was in.

    Observations are one-hot and the networks linear, so row i of a kernel has a gradient in just the minibatches that
    hold step i. With the learning rate 0 that gradient stays the same, and the decay of 0.9 tells when it came.
    """
    config = CLOCK
    _, init, step = compiled(config)
    state = init(jax.random.key(0))
    num_updates = config.num_epochs * config.num_minibatches
    num_rows = config.num_steps // config.num_minibatches
    places = [
        (i, config.num_minibatches + j) for i in range(config.num_minibatches) for j in range(config.num_minibatches)
    ]
    weight = 0.1 * 0.9 ** (num_updates - 1 - np.arange(num_updates))  # of each update in the moment at the end
    orders = []
    for iteration in range(3):
        before, (state, _) = state, step(state, iteration)
        params = to_float64(before.params)
        mean_before, mean = (to_float64(optax.tree_utils.tree_get(x.opt_state, "mu")) for x in (before, state))
        mean = jax.tree.map(lambda x, y: x - 0.9**num_updates * y, mean, mean_before)
        batch = reference_batch(config, params, before, probes.recorded(state.env_state), iteration)

        value_grad = config.vf_coef * (batch["value"] - batch["target"]) / num_rows
        found = mean.critic["params"]["Dense_0"]["kernel"][:, 0] / value_grad  # [num_steps]
        expected = np.array([weight[first] + weight[second] for first, second in places])
        nearest = np.abs(found[:, None] - expected).argmin(axis=1)
        np.testing.assert_allclose(found, expected[nearest], rtol=1e-3)
        order = np.array(places)[nearest].T  # [num_epochs, num_steps], the update that a row was in
        orders += [order[0], order[1] - config.num_minibatches]
        for epoch in order:
            np.testing.assert_array_equal(np.unique(epoch, return_counts=True)[1], [num_rows] * config.num_minibatches)

        logits, _ = forward(config, params, batch["obs"])
        score = np.eye(2)[batch["action"]] - np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        policy_mean = np.zeros((config.num_steps, 2))
        for update in range(num_updates):
            rows = np.flatnonzero((order == update).any(axis=0))
            advantage = batch["advantage"][rows]
            advantage = (advantage - advantage.mean()) / advantage.std()
            policy_mean[rows] -= weight[update] / num_rows * advantage[:, None] * score[rows]
        np.testing.assert_allclose(mean.actor["params"]["Dense_0"]["kernel"], policy_mean, rtol=1e-3, atol=1e-6)
    assert len({tuple(order) for order in orders}) == len(orders), "every epoch has an order of its own"


def test_log_std_init_is_where_the_policy_starts():
    for start in (0.0, -1.5):
        state = make(Config(env="Pendulum-v1", log_std_init=start)).init(jax.random.key(0))
        np.testing.assert_array_equal(state.params.actor["params"]["log_std"], np.float32([start]))


def test_the_action_that_is_learned_from_is_not_clipped():
    """Two steps: the gradients of mean and log_std give back both sampled actions, which the environment saw clipped.

    Normalised advantages are +1 and -1; with z = (action - mean) / std the two gradients hold z0 - z1 and z0^2 - z1^2.
    """
    config = replace(CLOCK, env="Probe-Recorder-Pair", num_steps=2, num_epochs=1, num_minibatches=1)
    algorithm = make(config)
    before = jax.jit(jax.vmap(algorithm.init))(jax.random.split(jax.random.key(0), 64))
    state, _ = jax.jit(jax.vmap(algorithm.step, in_axes=(0, None)))(before, 0)
    record = probes.recorded(state.env_state)
    num_clipped = 0
    for trial in range(64):
        params = to_float64(jax.tree.map(lambda x, trial=trial: x[trial], before.params))
        obs, next_obs = np.asarray(record.obs)[trial, 0, :2], np.asarray(record.next_obs)[trial, 0]
        mean, value = forward(config, params, obs)
        never = np.zeros((2, 1), bool)
        reward, next_value = np.asarray(record.reward)[trial, 0, :, None], forward(config, params, next_obs)[1][:, None]
        advantage, _ = gae_loop(reward, value[:, None], next_value, never, never, config.gamma, config.gae_lambda)
        sign = np.sign(advantage[0, 0] - advantage[1, 0])
        moment = optax.tree_utils.tree_get(state.opt_state, "mu").actor["params"]
        grad_mean, grad_log_std = (10 * float(x[trial, 0]) for x in (moment["Dense_0"]["bias"], moment["log_std"]))
        difference = -2 * grad_mean * sign
        if abs(difference) < 0.1:
            continue
        total = -2 * grad_log_std * sign / difference
        action = mean[:, 0] + np.array([total + difference, total - difference]) / 2
        np.testing.assert_allclose(np.clip(action, -1, 1), record.action[trial, 0, :, 0], atol=1e-3)
        num_clipped += int((np.abs(action) > 1.01).sum())
    assert num_clipped > 20
