"""PQN: returns, also those of REPPO, against a loop, problems with known answers, an iteration against numpy."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pqn
import probes
import pytest
import reppo
from helpers import tiers
from reference import global_norm, mlp, normalized, numerical_gradient, to_float64

probes.register()
NUM_SEEDS = probes.NUM_SEEDS
GAMMA = 0.9


pytestmark = pytest.mark.usefixtures("rank_promotion")


# -- Returns -----------------------------------------------------------------------------------------------------------


def returns_loop(reward, terminated, truncated, next_value, gamma, q_lambda):
    """Q(lambda) returns [num_steps, num_envs], environment by environment."""
    returns = np.zeros(reward.shape)
    for i in range(reward.shape[1]):
        following = None  # the return of the next step, if it belongs to this episode and this rollout
        for t in reversed(range(reward.shape[0])):
            if terminated[t, i]:
                returns[t, i] = reward[t, i]
            elif truncated[t, i] or following is None:
                returns[t, i] = reward[t, i] + gamma * next_value[t, i]
            else:
                mixed = q_lambda * following + (1 - q_lambda) * next_value[t, i]
                returns[t, i] = reward[t, i] + gamma * mixed
            following = returns[t, i]
    return returns


def random_rollout(seed, shape=(40, 6)):
    rng = np.random.default_rng(seed)
    reward, next_value = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    nothing = jnp.zeros(())
    rollout = pqn.Transition(
        nothing, nothing, jnp.asarray(reward), jnp.asarray(terminated), jnp.asarray(truncated), nothing
    )
    return rollout, next_value


@pytest.mark.parametrize("module", [pqn, reppo])
@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
def test_returns_equal_a_loop(module, q_lambda):
    for seed in range(3):
        rollout, next_value = random_rollout(seed)
        assert (rollout.terminated & rollout.truncated).any()
        returns = module.q_returns(rollout, jnp.asarray(next_value), GAMMA, q_lambda)
        flags = rollout.reward, rollout.terminated, rollout.truncated
        expected = returns_loop(*map(np.asarray, flags), next_value, GAMMA, q_lambda)
        np.testing.assert_allclose(returns, expected, rtol=1e-4, atol=1e-5)


def test_returns_of_lambda_0_are_those_of_one_step():
    rollout, next_value = random_rollout(0)
    expected = rollout.reward + GAMMA * np.where(rollout.terminated, 0.0, next_value)
    np.testing.assert_allclose(pqn.q_returns(rollout, jnp.asarray(next_value), GAMMA, 0.0), expected, rtol=1e-5)


def test_returns_of_lambda_1_are_sums_of_discounted_rewards():
    """Until the rollout ends, whose last successor is valued; values between do not matter."""
    rollout, next_value = random_rollout(0, (5, 2))
    no = jnp.zeros((5, 2), bool)
    rollout = rollout.replace(terminated=no, truncated=no)
    returns = pqn.q_returns(rollout, jnp.asarray(next_value), GAMMA, 1.0)
    powers = GAMMA ** np.arange(5)
    expected = (powers[:, None] * rollout.reward).sum(axis=0) + GAMMA**5 * next_value[-1]
    np.testing.assert_allclose(returns[0], expected, rtol=1e-5)


# -- Problems with known answers ---------------------------------------------------------------------------------------


@cache
def trained():
    """On all rooms: algorithm, final State and metrics of a few seeds."""
    config = pqn.Config(
        env="Probe-Rooms",
        total_timesteps=40_000,
        num_envs=16,
        num_steps=20,
        num_epochs=2,
        num_minibatches=4,
        learning_rate=0.01,
        gamma=GAMMA,
        hidden_sizes=(32,),
        normalize_obs=True,
        reward_scale=2.0,
    )
    return probes.trained(pqn, config)


@pytest.mark.slow
def test_values():
    """Rewards are scaled: constant, dependent on the observation, one step later (discounted), and of the action that
    pays. Reward 1 on every step is worth 10 where only a limit cuts. Where the same limit is an end, or both, the
    room does not show the time, and its value is less than half of that."""
    algorithm, state, _ = trained()
    values = np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, probes.OBSERVATIONS)) / 2.0
    expected = [probes.known_values(GAMMA)] * NUM_SEEDS
    known = slice(probes.ENDING.start)
    np.testing.assert_allclose(values[:, known], np.array(expected)[:, known], atol=0.05)
    assert (values[:, probes.ENDING] < 0.5 / (1 - GAMMA)).all()


@pytest.mark.slow
def test_the_action_that_pays_is_chosen():
    algorithm, state, metrics = trained()
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, probes.OBSERVATIONS)
    np.testing.assert_array_equal(actions[:, probes.PAYING], [probes.ACTIONS] * NUM_SEEDS)
    np.testing.assert_allclose(metrics["epsilon"][:, [0, -1]], [[1 - 0.95 * 304 / 4000, 0.05]] * NUM_SEEDS, rtol=1e-4)


# -- One iteration against numpy ---------------------------------------------------------------------------------------

UPDATES = pqn.Config(
    "Probe-Recorder",
    total_timesteps=240,
    num_envs=3,
    num_steps=16,
    num_epochs=7,  # RAdam divides by the second moment from its sixth step on
    num_minibatches=1,
    learning_rate=0.01,
    gamma=GAMMA,
    exploration_fraction=0.5,
    hidden_sizes=(6, 5),
)
CASES = {
    "plain": replace(
        UPDATES, layer_norm=False, activation="tanh", max_grad_norm=0.1, learning_rate=0.05, anneal_learning_rate=False
    ),
    "layer norm, normalised": replace(UPDATES, normalize_obs=True, q_lambda=0.9),
}


class RAdam:
    """Liu et al. 2020, algorithm 2, with the threshold of 5."""

    def __init__(self, params):
        self.mean, self.square = jax.tree.map(np.zeros_like, params), jax.tree.map(np.zeros_like, params)
        self.count = 0

    def step(self, params, grads, learning_rate):
        """The parameters after one step."""
        self.count += 1
        self.mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.mean, grads)
        self.square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, self.square, grads)
        mean_scale, square_scale = 1 - 0.9**self.count, 1 - 0.999**self.count
        longest = 2 / (1 - 0.999) - 1
        length = longest - 2 * self.count * 0.999**self.count / square_scale
        if length < 5:
            return jax.tree.map(lambda p, m: p - learning_rate * m / mean_scale, params, self.mean)
        factor = np.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        return jax.tree.map(
            lambda p, m, v: p - learning_rate * factor * (m / mean_scale) / (np.sqrt(v / square_scale) + 1e-8),
            params,
            self.mean,
            self.square,
        )


def q_values(config, params, obs):
    return mlp(params["params"]["Torso_0"], params["params"]["Dense_0"], obs, config.activation)


@pytest.mark.parametrize("case", tiers(CASES, "layer norm, normalised"))
def test_an_iteration_equals_numpy(case):
    """Parameters and metrics after two iterations of seven updates on the whole batch."""
    config = CASES[case]
    algorithm = pqn.make(config)
    step = jax.jit(algorithm.step)
    state = jax.jit(algorithm.init)(jax.random.key(2))
    optimizer = RAdam(to_float64(state.params))
    for iteration in range(2):
        before, (state, metrics) = state, step(state, iteration)
        params = to_float64(before.params)
        record = probes.recorded(state.env_state)
        rows = slice(iteration * config.num_steps, (iteration + 1) * config.num_steps)
        reward, terminated, truncated, action, obs, next_obs = (
            np.moveaxis(np.asarray(x), 0, 1)[rows]
            for x in (record.reward, record.terminated, record.truncated, record.action, record.obs, record.next_obs)
        )
        obs, next_obs = (normalized(before.obs_statistics, x) for x in (obs, next_obs))
        next_value = q_values(config, params, next_obs).max(axis=-1)
        target = returns_loop(reward, terminated, truncated, next_value, config.gamma, config.q_lambda)

        def loss(params, obs=obs, action=action, target=target):
            q = np.take_along_axis(q_values(config, params, obs), action[..., None], axis=-1)[..., 0]
            return np.mean((q - target) ** 2) / 2, q.mean()

        records = []
        for _ in range(config.num_epochs):
            q_loss, q_mean = loss(params)
            grads = numerical_gradient(lambda params: loss(params)[0], params)
            norm = global_norm(grads)
            records.append((q_loss, q_mean, norm))
            grads = jax.tree.map(lambda x, norm=norm: x * min(1.0, config.max_grad_norm / norm), grads)
            share = 1 - iteration / config.num_iterations if config.anneal_learning_rate else 1.0
            params = optimizer.step(params, grads, share * config.learning_rate)
        moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), params, to_float64(before.params))
        assert min(jax.tree.leaves(moved)) > 0.002
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-4), state.params, params)
        for name, expected in zip(("q_loss", "q_mean", "grad_norm"), np.mean(records, axis=0), strict=True):
            np.testing.assert_allclose(metrics[name], expected, rtol=1e-3, atol=1e-5, err_msg=name)
        progress = (rows.stop - 1) * config.num_envs / (config.exploration_fraction * config.total_timesteps)
        epsilon = config.epsilon_start + progress * (config.epsilon_end - config.epsilon_start)
        np.testing.assert_allclose(metrics["epsilon"], epsilon, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_minibatches": 5}, r"= 48 must be a multiple of num_minibatches = 5$"),
        ({"env": "Pendulum-v1"}, "continuous actions"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pqn.make(replace(UPDATES, **changes))
