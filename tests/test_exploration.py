"""Actions before the first update: uniform ones that fill the buffer, then those of a policy that is known on paper.

The policy is the same for every observation: all parameters are 0, but for what gives the actions their probabilities.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

probes.register()
NUM_ENVS, NUM_STEPS = 256, 16
BIAS = (0.2, 0.3, 0.5)  # of the discrete policies, as probabilities
STD = 0.3  # of the continuous policies, half-widths of the box
ON_POLICY = {"num_envs": NUM_ENVS, "num_steps": NUM_STEPS, "num_epochs": 1, "hidden_sizes": (4,)}
REPLAY = {
    "num_envs": NUM_ENVS,
    "steps_per_iteration": NUM_ENVS * NUM_STEPS,
    "learning_starts": NUM_ENVS * NUM_STEPS,
    "train_interval": NUM_ENVS * NUM_STEPS,
    "buffer_size": 2 * NUM_ENVS * NUM_STEPS,
    "batch_size": 8,
    "hidden_sizes": (4,),
}
EPSILON = {"epsilon_start": 1.0, "epsilon_end": 0.6, "exploration_fraction": 1e-3}
CASES = {
    "ppo": ("Probe-Recorder", ON_POLICY, BIAS),
    "ppo_rnn": ("Probe-Recorder", ON_POLICY, BIAS),
    "pqn": ("Probe-Recorder", ON_POLICY | EPSILON, (0.2, 0.2, 0.6)),
    "dqn": ("Probe-Recorder", REPLAY | EPSILON | {"target_interval": 10**6 * NUM_ENVS}, (0.2, 0.2, 0.6)),
    "sac_discrete": ("Probe-Recorder", REPLAY, BIAS),
    "ppo, continuous": ("Probe-Recorder-Continuous", ON_POLICY, None),
    "sac": ("Probe-Recorder-Continuous", REPLAY, None),
    "reppo": ("Probe-Recorder-Continuous", ON_POLICY, None),
    "td3": ("Probe-Recorder-Continuous", REPLAY | {"exploration_noise": STD, "gradient_steps": 2}, None),
}


pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]


def with_known_policy(script, state):
    """The State with the parameters of the known policy."""
    params = jax.tree.map(jnp.zeros_like, state.params)
    policy = (params if script in ("dqn", "pqn") else params.actor)["params"]
    if state.env_state.record.action.ndim == 2:
        policy["Dense_0"]["bias"] = jnp.log(jnp.array(BIAS))
    elif script == "ppo":
        policy["log_std"] += np.log(STD)
    elif script in ("sac", "reppo"):
        policy["Dense_1"]["bias"] += np.log(STD)
    return state.replace(params=params)


def shares(action):
    """The share of each of three actions."""
    return np.bincount(np.ravel(action), minlength=3) / np.size(action)


def in_half_widths(action):
    """Map actions from the box to [-1, 1], [number of actions, 2]."""
    low, high = np.array(probes.TWO_DIMENSIONS.low), np.array(probes.TWO_DIMENSIONS.high)
    return (2 * (np.asarray(action) - low) / (high - low) - 1).reshape(-1, 2)


@pytest.mark.parametrize("case", CASES)
def test_actions_are_uniform_first_and_then_those_of_the_policy(case):
    env, fields, probs = CASES[case]
    script = case.partition(",")[0]
    module = importlib.import_module(script)
    config = module.Config(env=env, **fields)
    algorithm = module.make(config)
    state = with_known_policy(script, jax.jit(algorithm.init)(jax.random.key(0)))
    num_random = config.env_steps(0) // NUM_ENVS
    record = jax.jit(lambda state: probes.recorded(algorithm.step(state, 0)[0].env_state).action)  # without its updates
    actions = np.asarray(record(state))[:, : num_random + NUM_STEPS]
    memory = (algorithm.initial_memory(NUM_ENVS),) if script == "ppo_rnn" else ()
    sample = jax.jit(jax.vmap(lambda key: jax.tree.leaves(algorithm.act(state, state.obs, *memory, key))[0]))
    sampled = sample(jax.random.split(jax.random.key(1), NUM_STEPS))
    if probs:
        if num_random:
            np.testing.assert_allclose(shares(actions[:, :num_random]), 1 / 3, atol=0.03)
        np.testing.assert_allclose(shares(actions[:, num_random:]), probs, atol=0.03)
        np.testing.assert_allclose(shares(sampled), probs, atol=0.03)
        return
    if num_random:
        uniform = in_half_widths(actions[:, :num_random])
        np.testing.assert_allclose(uniform.mean(axis=0), 0.0, atol=0.04)
        np.testing.assert_allclose(uniform.std(axis=0), np.sqrt(1 / 3), atol=0.02)
    for action in (actions[:, num_random:], sampled):
        normal = in_half_widths(action)
        normal = np.arctanh(normal) if script in ("sac", "reppo") else normal
        np.testing.assert_allclose(normal.mean(axis=0), 0.0, atol=0.02)
        np.testing.assert_allclose(normal.std(axis=0), STD, atol=0.02)
