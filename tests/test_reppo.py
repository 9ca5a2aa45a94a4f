"""REPPO: problems with known answers, the bound of the KL, an iteration against numpy. Returns: test_pqn.py."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import reppo
from helpers import tiers
from reference import Adam, global_norm, mlp, normalized, numerical_gradient, to_float64
from scipy import stats
from test_pqn import returns_loop

probes.register()
NUM_SEEDS = probes.NUM_SEEDS
GAMMA = 0.9


pytestmark = pytest.mark.usefixtures("rank_promotion")


# -- Problems with known answers ---------------------------------------------------------------------------------------


SEEDS = jax.random.split(jax.random.key(0), NUM_SEEDS)


def config_of(env, **changes):
    """The temperature starts and stays near 0, so that values are those of the rewards."""
    fields = {
        "total_timesteps": 40_000,
        "num_envs": 16,
        "num_steps": 20,
        "num_epochs": 2,
        "num_minibatches": 4,
        "learning_rate": 0.01,
        "gamma": GAMMA,
        "value_min": -2.0,
        "value_max": 12.0,
        "num_bins": 41,
        "alpha": 1e-4,
        "target_entropy": -10.0,
        "hidden_sizes": (32,),
        "normalize_obs": False,
    }
    return reppo.Config(env=env, **fields | changes)


@pytest.mark.slow
def test_values():
    """Constant, dependent on the observation, discounted where it comes one step later. Reward 1 on every step: 10
    where only a limit cuts. Where the same limit is an end, or both, the room does not show the time, and its value is
    less than half of that. No return is outside of the range."""
    algorithm, state, metrics = probes.trained(reppo, config_of("Probe-Rooms-Continuous"))
    values = np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, probes.OBSERVATIONS))
    known = [*range(probes.PAYING.start), probes.GOING_ON]
    np.testing.assert_allclose(values[:, known], [probes.known_values(GAMMA)[known]] * NUM_SEEDS, atol=0.05)
    assert (values[:, probes.ENDING] < 0.5 / (1 - GAMMA)).all()
    assert metrics["clipped_targets"].max() == 0


@pytest.mark.slow
def test_continuous_actions_find_their_targets():
    """In environment units, in a box that is asymmetric and differs per dimension, a target for each observation."""
    fields = {"value_min": -3.0, "value_max": 0.5, "num_bins": 101, "alpha": 0.1, "target_entropy": -1.0}
    algorithm, state, _ = probes.trained(reppo, config_of("Probe-Targets", **fields, learning_rate=3e-3))
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(2))  # [num_seeds, 2 observations, 2]
    half_width = (np.array(probes.Targets.high) - np.array(probes.Targets.low)) / 2
    np.testing.assert_array_less(np.abs(actions - np.array(probes.Targets.targets)) / half_width, 0.15)


@pytest.mark.slow
def test_the_bound_keeps_the_policy_near_the_old_one():
    """Eta is learned, too: it grows while the KL is above the bound, and never falls below its start. The control has a
    bound that is never reached."""
    config = config_of("Probe-Targets", value_min=-3.0, value_max=1.0, learning_rate=0.03, eta=1.0)
    train = lambda bound, key: reppo.make_train(replace(config, kl_bound=bound))(key)[1]
    train = jax.vmap(jax.vmap(train, in_axes=(None, 0)), in_axes=(0, None))
    metrics = jax.jit(train, compiler_options=probes.OPTIMIZED)(jnp.array([0.02, 1e6]), SEEDS)
    (bounded_kl, free_kl), (bounded_eta, free_eta) = metrics["kl"][:, :, :40], np.asarray(metrics["eta"])
    assert bounded_kl.mean() < 0.3 * free_kl.mean()
    assert (bounded_eta.max(axis=1) > 1.01).all()
    np.testing.assert_allclose(free_eta, 1.0, rtol=1e-6)


# -- One iteration against numpy ---------------------------------------------------------------------------------------

UPDATES = reppo.Config(
    "Probe-Recorder-Continuous",
    total_timesteps=240,
    num_envs=3,
    num_steps=16,
    num_epochs=3,
    num_minibatches=1,
    num_samples=2,
    learning_rate=0.03,
    gamma=GAMMA,
    alpha=0.3,
    eta=0.5,
    kl_bound=5e-4,
    value_min=-3.0,
    value_max=3.0,
    num_bins=7,
    hidden_sizes=(6, 5),
    value_hidden_sizes=(4,),
    activation="tanh",
)
CASES = {"plain": replace(UPDATES, layer_norm=False, normalize_obs=False, max_grad_norm=1e9), "all": UPDATES}


def policy_of(config, actor, obs):
    """Mean and std of the Gaussian before the squashing."""
    heads = (mlp(actor["params"]["Torso_0"], actor["params"][f"Dense_{i}"], obs, config.activation) for i in range(2))
    mean, log_std = heads
    return mean, np.exp(log_std)


def sample(config, actor, obs, noise):
    """Squashed actions and their log-probs, by the change of variables."""
    mean, std = policy_of(config, actor, obs)
    gaussian = mean + std * noise
    log_prob = stats.norm.logpdf(gaussian, mean, std) - np.log1p(-(np.tanh(gaussian) ** 2))
    return np.tanh(gaussian), log_prob.sum(axis=-1)


def histogram(config, values):
    edges = np.linspace(config.value_min, config.value_max, config.num_bins + 1)
    values = np.clip(values, config.value_min, config.value_max)[..., None]
    cdf = stats.norm.cdf(edges, values, 0.75 * (edges[1] - edges[0]))
    return np.diff(cdf, axis=-1) / (cdf[..., -1:] - cdf[..., :1])


def log_histogram_of(config, critic, obs, action):
    logits = mlp(
        critic["params"]["Torso_0"], critic["params"]["Dense_0"], np.append(obs, action, -1), config.activation
    )
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def q_of(config, critic, obs, action):
    edges = np.linspace(config.value_min, config.value_max, config.num_bins + 1)
    return np.exp(log_histogram_of(config, critic, obs, action)) @ ((edges[1:] + edges[:-1]) / 2)


def reference_batch(config, before, record, iteration):
    """obs, action, target and the old policy, of all rows."""
    _, value_key, _, _ = jax.random.split(jax.random.split(before.key, 3)[0], 4)
    shape = config.num_samples, config.num_steps, config.num_envs, 2
    noise = np.asarray(jax.random.normal(value_key, shape), np.float64)
    params, alpha = to_float64(before.params), np.exp(float(before.params.log_alpha))
    rows = slice(iteration * config.num_steps, (iteration + 1) * config.num_steps)
    names = ("reward", "terminated", "truncated", "action", "obs", "next_obs")
    x = {name: np.moveaxis(np.asarray(getattr(record, name)), 0, 1)[rows] for name in names}
    low, high = np.array(probes.TWO_DIMENSIONS.low), np.array(probes.TWO_DIMENSIONS.high)
    action = 2 * (x["action"].astype(np.float64) - low) / (high - low) - 1
    obs, next_obs = (normalized(before.obs_statistics, x[name]) for name in ("obs", "next_obs"))
    samples = [sample(config, params.actor, next_obs, one) for one in noise]
    q_next = np.mean([q_of(config, params.critic, next_obs, next_action) for next_action, _ in samples], axis=0)
    bonus = -alpha * np.mean([log_prob for _, log_prob in samples], axis=0)
    reward = x["reward"] + config.gamma * np.where(x["terminated"], 0.0, bonus)
    target = returns_loop(reward, x["terminated"], x["truncated"], q_next, config.gamma, config.q_lambda)
    batch = (obs, action, target, *policy_of(config, params.actor, obs))
    return [x.reshape(-1, *x.shape[2:]) for x in batch]


def reference_updates(config, before, batch, adams):
    """Parameters and metrics after the updates of an iteration; adams remember what came before."""
    obs, action, target, old_mean, old_std = batch
    params = to_float64(before.params)._asdict()
    _, _, _, noise_key = jax.random.split(jax.random.split(before.key, 3)[0], 4)
    noise = np.asarray(jax.random.normal(noise_key, (config.num_epochs, len(obs), 2)), np.float64)
    order = np.argsort(np.asarray(shuffled(config, before)), axis=1)
    noise = np.take_along_axis(noise, order[:, :, None], axis=1)

    def critic_loss(critic):
        return -(histogram(config, target) * log_histogram_of(config, critic, obs, action)).sum(axis=-1).mean()

    def actor_terms(actor, noise):
        mean, std = policy_of(config, actor, obs)
        own, log_prob = sample(config, actor, obs, noise)
        kl = np.log(std / old_std) + (old_std**2 + (old_mean - mean) ** 2) / (2 * std**2) - 0.5
        return own, log_prob, kl.sum(axis=-1)

    def actor_loss(actor, noise):
        own, log_prob, kl = actor_terms(actor, noise)
        improve = np.exp(params["log_alpha"]) * log_prob - q_of(config, params["critic"], obs, own)
        return np.where(kl < config.kl_bound, improve, np.exp(params["log_eta"]) * kl).mean()

    def descend(name, gradient):
        scale = min(1.0, config.max_grad_norm / global_norm(gradient))
        gradient = jax.tree.map(lambda x: x * scale, gradient)
        params[name] = adams[name].step(params[name], gradient, config.learning_rate)

    records = []
    for one in noise:
        record = {"critic_loss": critic_loss(params["critic"])}
        record["q_mean"] = q_of(config, params["critic"], obs, action).mean()
        descend("critic", numerical_gradient(critic_loss, params["critic"]))
        record["actor_loss"] = actor_loss(params["actor"], one)
        _, log_prob, kl = actor_terms(params["actor"], one)
        record |= {"entropy": -log_prob.mean(), "kl": kl.mean(), "beyond": (kl > config.kl_bound).mean()}
        descend("actor", numerical_gradient(lambda actor, one=one: actor_loss(actor, one), params["actor"]))
        record |= {"alpha": np.exp(params["log_alpha"]), "eta": np.exp(params["log_eta"])}
        descend("log_alpha", record["alpha"] * (record["entropy"] - config.target_entropy * 2))
        descend("log_eta", record["eta"] * (config.kl_bound - record["kl"]))
        params["log_eta"] = np.maximum(params["log_eta"], np.log(config.eta))
        records.append(record)
    return params, {name: np.mean([record[name] for record in records]) for name in records[0]}


def shuffled(config, before):
    """Row numbers of the batch of each epoch."""
    _, _, shuffle_key, _ = jax.random.split(jax.random.split(before.key, 3)[0], 4)
    rows = config.num_envs * config.num_steps
    return reppo.shuffle_epochs(shuffle_key, config.num_epochs, rows, rows)


@pytest.mark.parametrize("case", tiers(CASES, "all"))
def test_an_iteration_equals_numpy(case):
    """Parameters and metrics after two iterations of three updates on the whole batch, from the same noise."""
    config = CASES[case]
    algorithm = reppo.make(config)
    step = jax.jit(algorithm.step)
    state = jax.jit(algorithm.init)(jax.random.key(2))
    head = state.params.critic["params"]["Dense_0"]  # it starts at 0 everywhere: all samples would be worth the same
    head["bias"] = jnp.zeros_like(head["bias"])
    head["kernel"] = jnp.cos(jnp.arange(head["kernel"].size, dtype=jnp.float32)).reshape(head["kernel"].shape)
    adams = {name: Adam(x) for name, x in to_float64(state.params)._asdict().items()}
    for iteration in range(2):
        before, (state, metrics) = state, step(state, iteration)
        record = probes.recorded(state.env_state)
        batch = reference_batch(config, before, record, iteration)
        params, expected = reference_updates(config, before, batch, adams)
        if iteration == 0:
            assert 0.1 < expected.pop("beyond") < 0.9, "rows on both sides of the bound"
        for name, x in params.items():
            close = lambda a, b, name=name: np.testing.assert_allclose(a, b, rtol=0, atol=1e-3, err_msg=name)
            jax.tree.map(close, getattr(state.params, name), x)
        expected["clipped_targets"] = np.mean(np.abs(batch[2]) > 3.0)
        for name in metrics.keys() & expected.keys():
            np.testing.assert_allclose(metrics[name], expected[name], rtol=2e-3, atol=1e-4, err_msg=name)
        assert metrics.keys() - expected.keys() == {"episode_return", "episode_length", "num_episodes"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_minibatches": 5}, r"= 48 must be a multiple of num_minibatches = 5$"),
        ({"env": "CartPole-v1"}, "discrete actions"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        reppo.make(replace(UPDATES, **changes))
