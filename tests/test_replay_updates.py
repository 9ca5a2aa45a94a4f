"""Iterations of DQN, SAC, TD3 and their variants against numpy: targets, losses, gradients, optimizers, targets.

The replay is made to return known rows and the noise to be known numbers; nothing else is replaced.
"""

import importlib
from dataclasses import replace

import categorical_dqn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
import sac_discrete
from helpers import tiers
from reference import Adam, global_norm, mlp, normalized, numerical_gradient, to_float64

import dqn
import sac
import td3
from common.buffer import read

probes.register()
NUM_ITERATIONS = 4
REPLAY = {
    "num_envs": 2,
    "learning_starts": 16,
    "steps_per_iteration": 4,
    "train_interval": 4,
    "gradient_steps": 2,
    "buffer_size": 24,
    "batch_size": 6,
    "total_timesteps": 16 + 4 * NUM_ITERATIONS,
    "gamma": 0.9,
}
DISCRETE = {"env": "Probe-Recorder", "hidden_sizes": (5,), "target_interval": 8, "max_grad_norm": 1e9, **REPLAY}
DQN = dqn.Config(**DISCRETE, learning_rate=0.01)
CATEGORICAL = categorical_dqn.Config(**DISCRETE, learning_rate=0.03, value_min=-5.0, value_max=9.0, num_bins=5)
CONTINUOUS = {"env": "Probe-Recorder-Continuous", "hidden_sizes": (4,), "tau": 0.3, **REPLAY}
RATES = {"actor_learning_rate": 0.01, "critic_learning_rate": 0.02}
SAC = sac.Config(**CONTINUOUS, **RATES, alpha=0.7, alpha_learning_rate=0.03, target_entropy=-0.4)
SAC_DISCRETE = sac_discrete.Config(
    **CONTINUOUS | {"env": "Probe-Recorder"}, **RATES, alpha=0.7, alpha_learning_rate=0.03, target_entropy=0.8
)
TD3 = td3.Config(**CONTINUOUS, **RATES, target_noise=0.8, target_noise_clip=0.6)
CASES = {
    "dqn": replace(DQN, double=False),
    "dqn, clipped gradient, annealed, soft targets, normalised": replace(
        DQN,
        adam_eps=0.01,
        max_grad_norm=0.5,
        anneal_learning_rate=True,
        tau=0.3,
        target_interval=4,
        normalize_obs=True,
    ),
    "dqn, layer norm, 3 steps": replace(DQN, layer_norm=True, n_step=3, hidden_sizes=(5, 4), activation="tanh"),
    "categorical dqn": replace(CATEGORICAL, double=False),
    "categorical dqn, normalised, layer norm, 3 steps": replace(
        CATEGORICAL, normalize_obs=True, layer_norm=True, n_step=3, activation="tanh"
    ),
    "sac, fixed alpha": replace(SAC, alpha_learning_rate=0.0, alpha=0.3),
    "sac, normalised, layer norm, 3 steps": replace(
        SAC, normalize_obs=True, layer_norm=True, n_step=3, hidden_sizes=(4, 3), activation="tanh"
    ),
    "discrete sac": SAC_DISCRETE,
    "discrete sac, normalised, layer norm, 3 steps": replace(
        SAC_DISCRETE, normalize_obs=True, layer_norm=True, n_step=3, activation="tanh"
    ),
    "td3, policy delay 1": replace(TD3, policy_delay=1),
    "td3, normalised, layer norm, 3 steps": replace(
        TD3,
        normalize_obs=True,
        layer_norm=True,
        n_step=3,
        gradient_steps=4,
        hidden_sizes=(4, 3),
        activation="tanh",
    ),
}


pytestmark = pytest.mark.usefixtures("rank_promotion")


def newest(buffer, rows, n_step=1, num_envs=1, gamma=1.0):
    """Replaces `read_windows`: the rows written last, backwards, with a discount for each that tells which windows were
    asked for."""
    batch = read(buffer, (buffer.count - 1 - jnp.arange(rows.size).reshape(rows.shape)) % buffer.capacity)
    discount = gamma * jnp.cos(batch.reward + n_step + 7 * num_envs) ** 2
    return batch.replace(discount=discount)


def known_noise(key, shape=(), dtype=jnp.float32):
    """Replaces normal noise by known numbers between -1.5 and 1.5."""
    del key
    return jnp.asarray(1.5 * np.sin(2.4 * np.arange(np.prod(shape, dtype=int)) + 0.3), dtype).reshape(shape)


def noise_of(config, *shape):
    """Noise of each update of an iteration's one cycle, [num_updates, *shape, batch_size, 2]."""
    num_updates = config.gradient_steps // getattr(config, "policy_delay", 1)
    return np.asarray(known_noise(None, (num_updates, *shape, config.batch_size, 2)), np.float64)


class Reference:
    """One trial in float64; `update` is one update of everything on batches of the replay, the i-th of its cycle."""

    def __init__(self, config, state):
        self.config = config
        self.params, self.target_params = to_float64((state.params, state.target_params))

    def close(self, state):
        """Compare what is learned."""
        for mine, theirs in ((self.params, state.params), (self.target_params, state.target_params)):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-3, atol=2e-4), mine, theirs)

    def target(self, batch, next_value):
        return batch.reward + batch.discount * (1 - batch.terminated) * next_value

    def mlp(self, params, x):
        return mlp(params["params"].get("Torso_0", {}), params["params"]["Dense_0"], x, self.config.activation)


class ReferenceDQN(Reference):
    batches_per_update = 1

    def __init__(self, config, state):
        super().__init__(config, state)
        self.adam = Adam(self.params)

    def q(self, params, obs):
        return self.mlp(params, obs)

    def loss(self, params, target, batch):
        q = np.array([row[action] for row, action in zip(self.q(params, batch.obs), batch.action, strict=True)])
        return np.mean((q - target) ** 2) / 2, q

    def target_of(self, batch, next_action):
        q_next = self.q(self.target_params, batch.next_obs)
        return self.target(batch, q_next[np.arange(len(next_action)), next_action])

    def update(self, batches, i):
        config, batch = self.config, batches[0]
        select = self.q(self.params if config.double else self.target_params, batch.next_obs)
        target = self.target_of(batch, select.argmax(axis=-1))
        loss, q = self.loss(self.params, target, batch)
        grads = numerical_gradient(lambda params: self.loss(params, target, batch)[0], self.params)
        grads = jax.tree.map(lambda x: x * min(1.0, config.max_grad_norm / global_norm(grads)), grads)
        num_updates = NUM_ITERATIONS * config.gradient_steps
        share = 1 - self.adam.count / num_updates if config.anneal_learning_rate else 1.0
        self.params = self.adam.step(self.params, grads, share * config.learning_rate, config.adam_eps)
        return {"q_loss": loss, "q_mean": q.mean()}

    def end_iteration(self, iteration):
        config, env_steps = self.config, (iteration + 1) * self.config.steps_per_iteration
        if env_steps % config.target_interval == 0:
            mix = lambda new, old: config.tau * new + (1 - config.tau) * old
            self.target_params = jax.tree.map(mix, self.params, self.target_params)
        progress = min(1.0, (16 + env_steps - 2) / (config.exploration_fraction * config.total_timesteps))
        return {"epsilon": config.epsilon_start + progress * (config.epsilon_end - config.epsilon_start)}

    def close(self, state):
        super().close(state)
        mean = optax.tree_utils.tree_get(state.opt_state, "mu")
        jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-3, atol=1e-4), self.adam.mean, mean)

    def act_and_value(self, obs):
        q = self.q(self.params, obs)
        return q.argmax(axis=-1), q.max(axis=-1)


class ReferenceCategoricalDQN(ReferenceDQN):
    """Projected value by value, as algorithm 1 of Bellemare et al. 2017."""

    def __init__(self, config, state):
        super().__init__(config, state)
        self.bins = np.linspace(config.value_min, config.value_max, config.num_bins)

    def probs(self, params, obs):
        """[batch_size, 3, num_bins]."""
        logits = self.mlp(params, obs).reshape(len(obs), 3, -1)
        return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)

    def q(self, params, obs):
        return self.probs(params, obs) @ self.bins

    def target_of(self, batch, next_action):
        target, self.clipped = np.zeros((len(next_action), len(self.bins))), 0.0
        probs = self.probs(self.target_params, batch.next_obs)[np.arange(len(next_action)), next_action]
        for row, bin in np.ndindex(*target.shape):
            value = batch.reward[row] + batch.discount[row] * (1 - batch.terminated[row]) * self.bins[bin]
            inside = np.clip(value, self.bins[0], self.bins[-1])
            self.clipped += probs[row, bin] * (value != inside) / len(target)
            position = (inside - self.bins[0]) / (self.bins[1] - self.bins[0])
            below = min(int(position), len(self.bins) - 2)
            target[row, below] += probs[row, bin] * (below + 1 - position)
            target[row, below + 1] += probs[row, bin] * (position - below)
        return target

    def loss(self, params, target, batch):
        probs = self.probs(params, batch.obs)[np.arange(len(target)), batch.action]
        return -np.mean((target * np.log(probs)).sum(axis=-1)), probs @ self.bins

    def update(self, batches, i):
        return super().update(batches, i) | {"clipped_targets": self.clipped}


class ReferenceActorCritic(Reference):
    def __init__(self, config, state):
        super().__init__(config, state)
        self.adams = {name: Adam(x) for name, x in self.params._asdict().items()}

    def q(self, critic, obs, action):
        """[batch_size, 2]."""
        one = lambda i: self.mlp(jax.tree.map(lambda x: x[i], critic), np.concatenate([obs, action], -1))[..., 0]
        return np.stack([one(0), one(1)], axis=-1)

    def update_critic(self, target, batch):
        loss = lambda critic: sum(
            np.mean((self.q(critic, batch.obs, batch.action)[:, i] - target) ** 2) for i in range(2)
        )
        metrics = {
            "critic_loss": loss(self.params.critic),
            "q_mean": self.q(self.params.critic, batch.obs, batch.action).mean(),
        }
        grads = numerical_gradient(loss, self.params.critic)
        critic = self.adams["critic"].step(self.params.critic, grads, self.config.critic_learning_rate)
        self.params = self.params._replace(critic=critic)
        return metrics

    def update_actor(self, loss):
        metrics = {"actor_loss": loss(self.params.actor)}
        grads = numerical_gradient(loss, self.params.actor)
        actor = self.adams["actor"].step(self.params.actor, grads, self.config.actor_learning_rate)
        self.params = self.params._replace(actor=actor)
        return metrics

    def mix(self, new, old):
        return jax.tree.map(lambda x, y: self.config.tau * x + (1 - self.config.tau) * y, new, old)

    def end_iteration(self, iteration):
        del iteration
        return {}

    def close(self, state):
        super().close(state)
        for name, adam in self.adams.items():
            if name == "log_alpha" and self.config.alpha_learning_rate == 0:
                continue
            mean = optax.tree_utils.tree_get(state.opt_state[name], "mu")
            jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=2e-3, atol=1e-4), adam.mean, mean)

    def greedy(self, obs):
        return np.tanh(self.mlp(self.params.actor, obs))

    def act_and_value(self, obs):
        low, high = np.array(probes.TWO_DIMENSIONS.low), np.array(probes.TWO_DIMENSIONS.high)
        action = self.greedy(obs)
        return low + (action + 1) / 2 * (high - low), self.q(self.params.critic, obs, action).min(axis=-1)


class ReferenceSAC(ReferenceActorCritic):
    batches_per_update = 1

    def sample(self, actor, obs, noise):
        """Action [batch_size, 2] and log-prob [batch_size]."""
        torso, heads = actor["params"]["Torso_0"], (actor["params"]["Dense_0"], actor["params"]["Dense_1"])
        mean, log_std = (mlp(torso, head, obs, self.config.activation) for head in heads)
        std = np.exp(np.clip(log_std, -20, 2))
        x = mean + std * noise
        density = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(x) ** 2)
        return np.tanh(x), density.sum(axis=-1)

    def update(self, batches, i):
        config, batch, alpha = self.config, batches[0], np.exp(self.params.log_alpha)
        target_noise, noise = noise_of(config, 2)[i]
        next_action, next_log_prob = self.sample(self.params.actor, batch.next_obs, target_noise)
        q_next = self.q(self.target_params, batch.next_obs, next_action).min(axis=-1)
        target = self.target(batch, q_next - alpha * next_log_prob)
        metrics = self.update_critic(target, batch)

        def actor_loss(actor):
            action, log_prob = self.sample(actor, batch.obs, noise)
            return np.mean(alpha * log_prob - self.q(self.params.critic, batch.obs, action).min(axis=-1))

        entropy = -self.sample(self.params.actor, batch.obs, noise)[1].mean()
        metrics |= self.update_actor(actor_loss) | {"entropy": entropy, "alpha": alpha}
        # d/d log_alpha of alpha * (entropy - target); two dimensions
        grads = alpha * (entropy - 2 * config.target_entropy)
        log_alpha = self.adams["log_alpha"].step(self.params.log_alpha, grads, config.alpha_learning_rate)
        self.params = self.params._replace(log_alpha=log_alpha)
        self.target_params = self.mix(self.params.critic, self.target_params)
        return metrics


class ReferenceSACDiscrete(ReferenceActorCritic):
    batches_per_update = 1

    def policy(self, actor, obs):
        """Probabilities and their logarithms, [batch_size, 3]."""
        logits = self.mlp(actor, obs)
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return np.exp(log_probs), log_probs

    def q(self, critic, obs, action):
        """[batch_size, 2]."""
        return np.take_along_axis(self.all_q(critic, obs), action[:, None, None], axis=1)[:, 0]

    def all_q(self, critic, obs):
        """[batch_size, 3, 2]."""
        return np.stack([self.mlp(jax.tree.map(lambda x, i=i: x[i], critic), obs) for i in range(2)], axis=-1)

    def update(self, batches, i):
        config, batch, alpha = self.config, batches[0], np.exp(self.params.log_alpha)
        probs, log_probs = self.policy(self.params.actor, batch.next_obs)
        soft_q = self.all_q(self.target_params, batch.next_obs).min(axis=-1) - alpha * log_probs
        metrics = self.update_critic(self.target(batch, (probs * soft_q).sum(axis=-1)), batch)

        def actor_loss(actor):
            probs, log_probs = self.policy(actor, batch.obs)
            q = self.all_q(self.params.critic, batch.obs).min(axis=-1)
            return np.mean((probs * (alpha * log_probs - q)).sum(axis=-1))

        probs, log_probs = self.policy(self.params.actor, batch.obs)
        entropy = -(probs * log_probs).sum(axis=-1).mean()
        metrics |= self.update_actor(actor_loss) | {"entropy": entropy, "alpha": alpha}
        grads = alpha * (entropy - config.target_entropy * np.log(3))  # d/d log_alpha; three actions
        log_alpha = self.adams["log_alpha"].step(self.params.log_alpha, grads, config.alpha_learning_rate)
        self.params = self.params._replace(log_alpha=log_alpha)
        self.target_params = self.mix(self.params.critic, self.target_params)
        return metrics

    def act_and_value(self, obs):
        action = self.mlp(self.params.actor, obs).argmax(axis=-1)
        return action, self.q(self.params.critic, obs, action).min(axis=-1)


class ReferenceTD3(ReferenceActorCritic):
    def __init__(self, config, state):
        super().__init__(config, state)
        self.batches_per_update = config.policy_delay

    def update(self, batches, i):
        config, records = self.config, []
        for batch, noise in zip(batches, noise_of(config, config.policy_delay)[i], strict=True):
            smoothing = np.clip(config.target_noise * noise, -config.target_noise_clip, config.target_noise_clip)
            next_action = np.tanh(self.mlp(self.target_params.actor, batch.next_obs))
            next_action = np.clip(next_action + smoothing, -1, 1)
            q_next = self.q(self.target_params.critic, batch.next_obs, next_action).min(axis=-1)
            target = self.target(batch, q_next)
            records.append(self.update_critic(target, batch))
        obs = batches[-1].obs
        metrics = self.update_actor(
            lambda actor: -np.mean(self.q(self.params.critic, obs, np.tanh(self.mlp(actor, obs)))[:, 0])
        )
        self.target_params = self.mix(self.params, self.target_params)
        return {name: np.mean([record[name] for record in records]) for name in records[0]} | metrics


REFERENCES = {
    "dqn": ReferenceDQN,
    "categorical_dqn": ReferenceCategoricalDQN,
    "sac": ReferenceSAC,
    "sac_discrete": ReferenceSACDiscrete,
    "td3": ReferenceTD3,
}


def batches_of(config, state):
    """The batches that `newest` returns in the one cycle of an iteration, normalised as the networks see them."""
    shape = (config.gradient_steps, config.batch_size)
    batch = jax.tree.map(
        np.asarray, newest(state.buffer, np.zeros(shape, int), config.n_step, config.num_envs, config.gamma)
    )
    batch = batch.replace(
        obs=normalized(state.obs_statistics, batch.obs), next_obs=normalized(state.obs_statistics, batch.next_obs)
    )
    return [jax.tree.map(lambda x, i=i: x[i], batch) for i in range(config.gradient_steps)]


def obs_of(state):
    """All of the buffer."""
    return read(state.buffer, np.arange(state.buffer.capacity)).obs


@pytest.mark.parametrize("config", [DQN, SAC, SAC_DISCRETE, TD3], ids=["dqn", "sac", "sac_discrete", "td3"])
def test_the_buffer_keeps_the_true_successor_and_the_kind_of_end(config):
    """A room is followed by the one that its table names until its episode ends, with either flag or both."""
    env = "Probe-Rooms" if config.env == "Probe-Recorder" else "Probe-Rooms-Continuous"
    config = replace(config, env=env, num_envs=2, learning_starts=240, buffer_size=256, total_timesteps=400)
    state = jax.jit(importlib.import_module(type(config).__module__).make(config).init)(jax.random.key(0))
    rows, steps, visited = jax.tree.map(np.asarray, read(state.buffer, np.arange(240))), [0, 0], set()
    for i in range(240):
        number, following, trial = int(rows.obs[i].argmax()), int(rows.next_obs[i].argmax()), i % 2
        room, steps[trial] = probes.ROOMS[number], steps[trial] + 1
        is_last = steps[trial] == room.limit
        assert rows.terminated[i] == (is_last and room.flags != "truncated")
        assert rows.truncated[i] == (is_last and room.flags != "terminated")
        assert following == (number if room.following is None else room.following)
        visited.add(number)
        steps[trial] *= not is_last
    assert len(visited) == len(probes.ROOMS), "episodes begin everywhere"


# The case of each script with most options.
QUICK = [case for case in CASES if "3 steps" in case]


@pytest.mark.parametrize("case", tiers(CASES, *QUICK))
def test_iterations_equal_numpy(case, monkeypatch):
    """Four iterations of one cycle each: parameters, targets, gradients, metrics, greedy action and value.

    The target networks start as other networks, so it shows which of the two is asked.
    """
    config = CASES[case]
    script = type(config).__module__
    module = importlib.import_module(script)
    monkeypatch.setattr(module, "read_windows", newest)
    algorithm = module.make(config)
    state = jax.jit(algorithm.init)(jax.random.key(1))
    other = lambda x: x + 0.5 * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    state = state.replace(target_params=jax.tree.map(other, state.target_params))
    reference = REFERENCES[script](config, state)
    monkeypatch.setattr(jax.random, "normal", known_noise)
    step, act, value = jax.jit(algorithm.step), jax.jit(algorithm.act), jax.jit(algorithm.value)
    for iteration in range(NUM_ITERATIONS):
        state, metrics = step(state, iteration)
        batches, records = batches_of(config, state), []
        assert any(batch.terminated.any() for batch in batches)
        size = reference.batches_per_update
        for i in range(config.gradient_steps // size):
            records.append(reference.update(batches[i * size : (i + 1) * size], i))
        expected = {name: np.mean([record[name] for record in records]) for name in records[0]}
        expected |= reference.end_iteration(iteration)
        assert metrics.keys() - expected.keys() == {"episode_return", "episode_length", "num_episodes"}
        for name, x in expected.items():
            np.testing.assert_allclose(metrics[name], x, rtol=1e-3, atol=1e-4, err_msg=name)
        reference.close(state)
        if script == "sac" and config.alpha_learning_rate == 0:
            assert state.params.log_alpha == jnp.log(jnp.float32(config.alpha)), "a fixed temperature stays bit-equal"
        obs = obs_of(state)
        expected = reference.act_and_value(normalized(state.obs_statistics, obs))
        for actual, x in zip((act(state, obs), value(state, obs)), expected, strict=True):
            np.testing.assert_allclose(actual, x, rtol=1e-3, atol=1e-3)
