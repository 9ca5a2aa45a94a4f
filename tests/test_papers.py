"""docs/papers.md: each diff fits its script, and with it the script computes what the paper says."""

import importlib
import sys
import types
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import ROOT, SMALL
from reference import dense, layer_norm, to_float64

from common.buffer import add, init_buffer, read
from runner.main import parse_command_line

sys.path.append(str(ROOT / "benchmarks"))

import paper_environments  # noqa: F401  # registers its environments
import papers

pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]

PAPERS = papers.read_papers()


@cache
def cook(paper):
    """The module of a copy of the script with the diff."""
    path, text = papers.copy_of(paper)
    original = importlib.import_module(Path(path).stem)
    module = types.ModuleType(f"{original.__name__}_{paper.lower().replace(' ', '_')}")
    module.__file__ = original.__file__
    sys.modules[module.__name__] = module  # dataclasses look it up there
    exec(compile(text, module.__name__, "exec"), module.__dict__)
    return module


def config_of(module, script, **changes):
    """A small configuration of a copy, without normalisation."""
    fields = SMALL[script] | {"normalize_obs": False, "normalize_reward": False} | changes
    return module.Config(**{name: x for name, x in fields.items() if name in module.Config.__dataclass_fields__})


def inner(function, name):
    """A function or a value that `make` has under this name, found from one of its functions."""
    seen, queue = set(), [function]
    while queue:
        function = queue.pop(0)
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = cell.cell_contents
            if key == name:
                return value
            if isinstance(value, types.FunctionType) and value not in seen:
                seen.add(value)
                queue.append(value)
    raise KeyError(name)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A file of 40 transitions of Pendulum, whose rewards tell them from those of a buffer."""
    path = tmp_path_factory.mktemp("papers") / "dataset.npz"
    obs = np.random.default_rng(0).normal(size=(41, 3)).astype(np.float32)
    no = np.zeros(40, bool)
    rows = {"obs": obs[:-1], "action": obs[:-1, :1], "reward": 100 + np.arange(40, dtype=np.float32)}
    np.savez(path, **rows, terminated=no, truncated=no, next_obs=obs[1:])
    return str(path)


# -- The copies --------------------------------------------------------------------------------------------------------


OFF = {
    "RND": {"int_coef": 0.0},
    "HER": {"her_share": 0.0},
    "RLPD": {"offline_share": 0.0},
    "ReDo": {"redo_threshold": -1.0},
}


def iteration_of(algorithm, key):
    """The metrics of the first iteration, after which the state is of the same form."""
    state = algorithm.init(key)
    after, metrics = algorithm.step(state, 0)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    return metrics


@pytest.mark.parametrize("paper", [paper for paper in PAPERS if paper not in OFF])
def test_the_diff_fits(paper):
    module, script = cook(paper), Path(PAPERS[paper][0]).stem
    env = "Pendulum-v1" if script == "sac" else "CartPole-v1"
    algorithm = module.make(config_of(module, script, env=env, memory_size=2))
    jax.eval_shape(partial(iteration_of, algorithm), jax.eval_shape(jax.random.key, 0))


@pytest.mark.parametrize("name", papers.STUDIES)
def test_the_flags_of_a_study_can_be_read(name, tmp_path, monkeypatch):
    study = papers.STUDIES[name]
    module, path = cook(study.paper), tmp_path / "my.py"
    (tmp_path / "presets").mkdir()
    papers.write_copy(study.paper, path)
    monkeypatch.setattr(module, "__file__", str(path))
    for words in (study.flags, f"{study.flags} {study.on if study.off is None else study.off}"):
        monkeypatch.setattr(sys, "argv", ["my.py", *words.split(), *papers.COMMON.split()])
        config, options, _ = parse_command_line(path, module.Config)
        assert (config.env, options.num_seeds) == (words.split()[1], 20)


@pytest.mark.parametrize("paper", OFF)
def test_turned_off_it_is_the_script(paper, dataset):
    script = PAPERS[paper][0].removesuffix(".py")
    env = {"RLPD": "Pendulum-v1", "HER": "BitFlip-v0:num_bits=5"}.get(paper, "CartPole-v1")

    def train(module, **changes):
        algorithm = module.make(config_of(module, script, env=env, **changes))
        return jax.jit(partial(iteration_of, algorithm))(jax.random.key(0))

    original = train(importlib.import_module(script))
    copy = train(cook(paper), **OFF[paper], dataset=dataset, redo_interval=1)
    for name, x in original.items():
        np.testing.assert_array_equal(copy[name], x, err_msg=name)


# -- The mathematics ---------------------------------------------------------------------------------------------------


def ppo_of(paper, **changes):
    """The algorithm of a copy of ppo.py, a state, and a rollout [6, 2] with a terminal and a truncated step."""
    module = cook(paper)
    algorithm = module.make(config_of(module, "ppo", env="CartPole-v1", **changes))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    draw = np.random.default_rng(1)
    obs = jnp.float32(draw.normal(size=(6, 2, 4)))
    flags = jnp.zeros((2, 6, 2), bool).at[0, 2, 0].set(True).at[1, 3, 1].set(True)
    rollout = module.Transition(
        obs=obs,
        action=jnp.int32(draw.integers(2, size=(6, 2))),
        reward=jnp.float32(draw.normal(size=(6, 2))),
        terminated=flags[0],
        truncated=flags[1],
        next_obs=jnp.concatenate([obs[1:], obs[:1]]).at[2, 0].set(3.0),
    )
    return algorithm, state, rollout


def mlp(params, x, activation=np.tanh):
    """A head behind the hidden layers of a network."""
    layers = to_float64(params["params"])
    x = np.asarray(x, np.float64)
    for i in range(sum(name.startswith("Dense") for name in layers["Torso_0"])):
        x = activation(dense(layers["Torso_0"][f"Dense_{i}"], x))
    return dense(layers["Dense_0"], x)


def test_dpo_has_the_drift_of_the_paper():
    algorithm, state, rollout = ppo_of("DPO", hidden_sizes=(4,))
    logits = mlp(jax.tree.map(lambda x: 3 * x, state.params.actor), rollout.obs[:, 0])
    draw = np.random.default_rng(2)
    log_prob, advantage = draw.normal(-0.7, 1.0, 6), draw.normal(size=6)
    params = state.params._replace(actor=jax.tree.map(lambda x: 3 * x, state.params.actor))
    zeros, action = jnp.zeros(6), rollout.action[:, 0]
    batch = cook("DPO").Batch(rollout.obs[:, 0], action, jnp.float32(log_prob), zeros, jnp.float32(advantage), zeros)
    _, metrics = jax.jit(inner(algorithm.step, "loss"))(params, state, batch)

    new_log_prob = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[range(6), action]
    ratio, advantage = np.exp(new_log_prob - log_prob), (advantage - advantage.mean()) / advantage.std()
    losses = []
    for r, a in zip(ratio, advantage, strict=True):
        if a >= 0:
            drift = max((r - 1) * a - 2 * np.tanh((r - 1) * a / 2), 0)
        else:
            drift = max(np.log(r) * a - 0.6 * np.tanh(np.log(r) * a / 0.6), 0)
        losses.append(drift - r * a)
    np.testing.assert_allclose(metrics["policy_loss"], np.mean(losses), rtol=1e-4)


def advantages(reward, value, next_value, is_end, is_cut, gamma, gae_lambda):
    """GAE by its recursion, of one environment."""
    advantage, result = 0.0, []
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * next_value[t] * (not is_end[t]) - value[t]
        advantage = delta + gamma * gae_lambda * advantage * (not (is_end[t] or is_cut[t]))
        result.append(advantage)
    return np.array(result[::-1])


def test_rnd_adds_the_advantage_of_endless_intrinsic_returns():
    algorithm, state, rollout = ppo_of("RND", int_coef=0.7, int_gamma=0.9)
    surprise, make_batch = (inner(algorithm.step, name) for name in ("surprise", "make_batch"))
    _, int_rollout = jax.jit(surprise)(state, rollout)
    batch = jax.jit(make_batch)(state, rollout, int_rollout)

    error = mlp(state.params.predictor, rollout.next_obs) - mlp(state.random_network, rollout.next_obs)
    reward, total, returns = (error**2).mean(axis=-1), np.zeros(2), []
    for x in reward:
        total = 0.9 * total + x
        returns.append(total)
    reward /= np.std(returns)
    np.testing.assert_allclose(int_rollout.reward, reward, rtol=1e-4)
    value, after = (mlp(state.params.critic, x)[..., 0] for x in (rollout.obs, rollout.next_obs))
    int_value = mlp(state.params.int_critic, rollout.obs)[..., 0]
    last = mlp(state.params.int_critic, state.obs)[..., 0]
    int_after, never = np.concatenate([int_value[1:], last[None]]), np.zeros(6, bool)
    for i in range(2):
        ends = rollout.terminated[:, i], rollout.truncated[:, i]
        outer = advantages(rollout.reward[:, i], value[:, i], after[:, i], *ends, 0.99, 0.95)
        curious = advantages(reward[:, i], int_value[:, i], int_after[:, i], never, never, 0.9, 0.95)
        np.testing.assert_allclose(batch.advantage[:, i], outer + 0.7 * curious, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(batch.int_target[:, i], curious + int_value[:, i], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(batch.target[:, i], outer + value[:, i], rtol=1e-3, atol=1e-4)


def test_rnd_trains_both_new_networks_apart_from_the_others():
    algorithm, state, rollout = ppo_of("RND", vf_coef=0.3, max_grad_norm=0.1)
    learn, make_batch, surprise = (inner(algorithm.step, name) for name in ("learn", "make_batch", "surprise"))
    loss, optimizer = inner(algorithm.step, "loss"), inner(algorithm.step, "optimizer")
    small, large = (jax.tree.map(lambda x, c=c: jnp.full_like(x, c), state.params) for c in (1e-3, 1e6))
    mixed = small._replace(int_critic=large.int_critic, predictor=large.predictor)

    @jax.jit
    def compute(state, rollout, grads):
        batch = make_batch(state, rollout, surprise(state, rollout)[1])
        batch = batch.replace(int_target=batch.target + 2.0)
        batch = jax.tree.map(lambda x: x.reshape(12, *x.shape[2:]), batch)
        updates = [optimizer.update(x, state.opt_state)[0] for x in grads]
        return learn(state, rollout)[0].int_scaling, batch, loss(state.params, state, batch), updates

    scaling, batch, (total, metrics), (first, then) = compute(state, rollout, (small, mixed))
    assert scaling.statistics.count == 12
    features = [mlp(x, batch.next_obs) for x in (state.params.predictor, state.random_network)]
    predictor_loss = ((features[0] - features[1]) ** 2).mean()
    int_value = mlp(state.params.int_critic, batch.obs)[:, 0]
    int_value_loss = 0.5 * ((int_value - batch.int_target) ** 2).mean()
    np.testing.assert_allclose(metrics["predictor_loss"], predictor_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["int_value_loss"], int_value_loss, rtol=1e-4)
    ppo_loss = metrics["policy_loss"] + 0.3 * metrics["value_loss"] - 0.01 * metrics["entropy"]
    np.testing.assert_allclose(total, ppo_loss + 0.3 * int_value_loss + predictor_loss, rtol=1e-4)
    for name in ("actor", "critic"):
        jax.tree.map(np.testing.assert_array_equal, getattr(first, name), getattr(then, name))


def test_per_draws_rows_in_proportion_to_their_priorities():
    priorities = np.zeros(384, np.float32)
    priorities[:300] = np.random.default_rng(0).exponential(size=300)
    numbers = (jnp.arange(60_000) + 0.5) / 60_000
    rows = jax.jit(cook("PER").draw_prioritized)(jnp.asarray(priorities), numbers)
    counts = np.bincount(rows, minlength=384)
    np.testing.assert_allclose(counts / 60_000, priorities / priorities.sum(), atol=1e-4)


def test_per_never_draws_a_row_that_is_not_written():
    """The last stratum's number, (127 + u) / 128, now and then rounds to 1."""
    priorities = jnp.zeros(384).at[:200].set(0.1)
    numbers = jnp.float32([1.0, 1 - 2**-24])
    rows = jax.jit(cook("PER").draw_prioritized)(priorities, numbers)
    np.testing.assert_array_equal(rows, [199, 199])
    values = np.random.default_rng(0).uniform(0.1, 5.0, (100, 40_000)).astype(np.float32)
    priorities = np.where(np.arange(50_048) < 40_000, np.pad(values, ((0, 0), (0, 10_048))), 0)
    draw = jax.jit(jax.vmap(cook("PER").draw_prioritized, (0, None)))
    assert (draw(jnp.asarray(priorities), numbers) < 40_000).all()  # sums of blocks round, each in its own way


def test_per_weighs_the_errors_and_renews_the_priorities():
    """Without discount and learning rate an error is Q minus the reward, which is 1."""
    module, changes = cook("PER"), {"gamma": 0.0, "learning_rate": 0.0, "per_alpha": 0.5, "hidden_sizes": (4,)}
    algorithm = module.make(config_of(module, "dqn", env="CartPole-v1", **changes))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    priorities = np.zeros(256, np.float32)
    priorities[:32] = np.random.default_rng(0).uniform(0.1, 5.0, 32)
    replay = state.buffer.replace(priorities=jnp.asarray(priorities), max_priority=jnp.float32(0.5))
    state, numbers = state.replace(buffer=replay, beta=jnp.float32(0.7)), (jnp.arange(8) + 0.5) / 8
    after, metrics = jax.jit(inner(algorithm.step, "learn"))(state, numbers)

    rows = np.searchsorted(priorities.cumsum(), numbers * priorities.sum(), side="right")
    batch = read(state.buffer.transitions, rows)
    q = mlp(state.params, batch.obs, lambda x: np.maximum(x, 0))[range(8), batch.action]
    weight = (32 * priorities[rows] / priorities.sum()) ** -0.7  # equation 1 and section 3.4
    weight /= weight.max()
    np.testing.assert_allclose(metrics["q_loss"], 0.5 * (weight * (q - 1) ** 2).mean(), rtol=1e-4)
    priorities[rows] = np.sqrt(np.abs(q - 1) + 1e-6)
    np.testing.assert_allclose(after.buffer.priorities, priorities, rtol=1e-4)
    new = jax.jit(inner(algorithm.step, "add_new"))(after.buffer, jax.tree.map(lambda x: x[:2], batch))
    newest = max(0.5, priorities[rows].max())
    np.testing.assert_allclose(new.priorities[32:35], [newest, newest, 0], rtol=1e-4)


def test_per_draws_one_row_of_each_stratum_and_corrects_more_and_more(monkeypatch):
    config = config_of(cook("PER"), "dqn", env="CartPole-v1", total_timesteps=384, per_beta=0.4)
    monkeypatch.setattr(cook("PER"), "scan_mean", lambda body, carry, xs: (carry, {"numbers": xs[1]}))
    algorithm = cook("PER").make(config)
    state, metrics = jax.jit(lambda key: algorithm.step(algorithm.init(key), 10))(jax.random.key(0))
    np.testing.assert_allclose(state.beta, 0.4 + 0.6 * (32 + 10 * 16) / 384, rtol=1e-5)
    strata = np.floor(8 * np.asarray(metrics["numbers"]))  # [num_cycles, updates, batch_size]
    np.testing.assert_array_equal(strata, np.broadcast_to(np.arange(8), strata.shape))


def test_her_takes_goals_from_later_in_the_episode(monkeypatch):
    """Against a walk over a ring of two environments that has gone around."""
    module = cook("HER")
    algorithm = module.make(config_of(module, "dqn", env="BitFlip-v0:num_bits=5", her_share=0.5, buffer_size=33))
    draw = np.random.default_rng(0)
    obs, done = np.float32(draw.integers(2, size=(2, 60, 10))), draw.random((2, 60)) < 0.2
    rows = module.Transition(obs[0], np.zeros(60, np.int32), np.float32(np.arange(60)), *done, obs[1])
    buffer = init_buffer(jax.tree.map(lambda x: x[0], rows), 33)
    for i in range(0, 60, 2):
        buffer = add(buffer, jax.tree.map(lambda x: jnp.asarray(x[i : i + 2]), rows))  # noqa: B023
    monkeypatch.setattr(module, "scan_mean", lambda body, carry, xs: xs)
    learn = inner(algorithm.step, "learn")
    state = types.SimpleNamespace(buffer=buffer)
    numbers, coins = draw.random((40, 33)), draw.random((40, 33))
    drawn = jnp.tile(jnp.arange(33), (40, 1))
    batch = jax.jit(lambda *xs: learn(state, xs))(drawn, jnp.float32([coins, numbers]))

    for i, slot in np.ndindex(40, 33):
        t = next(x for x in range(27, 60) if x % 33 == slot)  # the transition that stands in this row
        later = [t]
        while not done[:, later[-1]].any() and later[-1] + 2 < 60 and len(later) < 5:
            later.append(later[-1] + 2)
        goal = obs[1, later[int(numbers[i, slot] * len(later))], :5]
        is_reached = (obs[1, t, :5] == goal).all()
        expected = [*obs[0, t], *obs[1, t], t, done[0, t]]
        if coins[i, slot] < 0.5:
            expected = [*obs[0, t, :5], *goal, *obs[1, t, :5], *goal, is_reached - 1.0, is_reached]
        found = [*batch.obs[i, slot], *batch.next_obs[i, slot], batch.reward[i, slot], batch.terminated[i, slot]]
        assert found == expected


def sac_of(paper, **changes):
    """The algorithm of a copy of sac.py, a state of which no bias is 0, and a batch of 8."""
    module = cook(paper)
    config = config_of(module, "sac", env="Pendulum-v1", **changes)
    algorithm = module.make(config)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    shake = lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)
    state = state.replace(params=jax.tree.map(shake, state.params))
    batch = read(state.buffer, jnp.arange(8)).replace(discount=jnp.full(8, 0.9))
    return algorithm, state, batch


def test_rlpd_draws_a_share_from_the_dataset(monkeypatch, dataset):
    algorithm, state, _ = sac_of("RLPD", dataset=dataset, offline_share=0.25)
    monkeypatch.setattr(cook("RLPD"), "scan_mean", lambda body, carry, xs: xs)
    rows, offline_rows = jnp.arange(16).reshape(2, 8), 20 + jnp.arange(16).reshape(2, 8)
    batches, _ = inner(algorithm.step, "learn")(state, ((rows, offline_rows), None))
    expected = np.array(read(state.buffer, rows).reward)
    expected[:, :2] = 100 + offline_rows[:, :2]
    np.testing.assert_array_equal(batches.reward, expected)
    assert batches.next_obs.shape == (2, 8, 3)


def learn_inputs_of(paper, monkeypatch, **changes):
    """The inputs of `learn` in each cycle of the first iteration of a copy of sac.py."""
    algorithm, state, _ = sac_of(paper, **changes)
    monkeypatch.setattr(cook(paper), "scan_mean", lambda body, carry, xs: (carry, {"inputs": xs[1]}))
    return jax.jit(algorithm.step)(state, 0)[1]["inputs"]


def test_rlpd_draws_from_all_rows_of_the_dataset(monkeypatch, dataset):
    (_, rows), _ = learn_inputs_of("RLPD", monkeypatch, dataset=dataset)
    assert rows.min() >= 0
    assert 32 <= rows.max() < 40, "the dataset has 40 rows, the buffer 32"


def test_redq_draws_critics_for_each_target(monkeypatch):
    *_, subsets = learn_inputs_of("REDQ", monkeypatch, num_critics=4, gradient_steps=8)
    subsets = np.sort(np.asarray(subsets), axis=-1)  # [num_cycles, updates, 2]
    pairs = {tuple(x) for x in subsets.reshape(-1, 2).tolist()}
    assert pairs == {(i, j) for j in range(4) for i in range(j)}


def test_redq_takes_the_minimum_of_the_subset_and_the_mean_for_the_actor():
    algorithm, state, batch = sac_of("REDQ", num_critics=4, num_in_target=2, gradient_steps=3)
    noise, subset = jnp.float32(np.random.default_rng(0).normal(size=(8, 1))), jnp.array([3, 1])
    state = state.replace(target_params=jax.tree.map(lambda x: 1.5 * x, state.target_params))
    sample, critic = jax.jit(inner(algorithm.step, "sample_action")), inner(algorithm.step, "critic")
    obs = [inner(algorithm.step, "preprocess")(state, x) for x in (batch.obs, batch.next_obs)]
    action, log_prob = sample(state.params.actor, obs[1], noise)
    alpha = np.exp(state.params.log_alpha)
    q_next = np.asarray(critic.apply(state.target_params, obs[1], action))
    target = batch.reward + 0.9 * (np.minimum(q_next[:, 3], q_next[:, 1]) - alpha * log_prob)
    q = critic.apply(state.params.critic, obs[0], batch.action)
    loss, _ = jax.jit(inner(algorithm.step, "critic_loss"))(state.params.critic, state, batch, noise, subset)
    np.testing.assert_allclose(loss, ((q - target[:, None]) ** 2).mean(axis=0).sum(), rtol=1e-4)

    action, log_prob = sample(state.params.actor, obs[0], noise)
    q = critic.apply(state.params.critic, obs[0], action)
    loss, _ = jax.jit(inner(algorithm.step, "actor_loss"))(state.params.actor, state, batch, noise)
    np.testing.assert_allclose(loss, (alpha * log_prob - q.mean(axis=1)).mean(), rtol=1e-4)

    value = jax.jit(algorithm.value)(state, batch.obs)
    greedy = jax.jit(algorithm.act)(state, batch.obs) / 2.0  # torque of at most 2 N m
    np.testing.assert_allclose(value, critic.apply(state.params.critic, obs[0], greedy).mean(axis=1), rtol=1e-4)

    learn, rows, noise = jax.jit(inner(algorithm.step, "learn")), jnp.zeros((6, 8), jnp.int32), jnp.zeros((6, 2, 8, 1))
    subsets = jnp.zeros((6, 2), jnp.int32)
    after, _ = learn(state, (rows, noise, subsets))
    again, _ = learn(state, (rows, noise.at[:-1, 1].set(1.0), subsets))
    jax.tree.map(np.testing.assert_array_equal, after.params.actor, again.params.actor)
    counts = [optax.tree.get(after.opt_state[name], "count") for name in ("critic", "actor", "log_alpha")]
    assert counts == [6, 1, 1]


def batch_norm(x, layer, statistics):
    """Normalised by the batch, and the running mean and variance after it, which began at those given."""
    mean, variance = x.mean(axis=0), x.var(axis=0)
    running = [0.99 * statistics[name] + 0.01 * new for name, new in (("mean", mean), ("var", variance))]
    return (x - mean) / np.sqrt(variance + 1e-5) * layer["scale"] + layer["bias"], running


def test_crossq_normalises_both_halves_together():
    algorithm, state, batch = sac_of("CrossQ")
    noise = jnp.float32(np.random.default_rng(0).normal(size=(8, 1)))
    critic_loss = jax.jit(jax.value_and_grad(inner(algorithm.step, "critic_loss"), has_aux=True))
    (loss, metrics), grads = critic_loss(state.params.critic, state, batch, noise)
    action, log_prob = jax.jit(inner(algorithm.step, "sample_action"))(state.params.actor, batch.next_obs, noise)

    rows = np.concatenate([np.c_[batch.obs, batch.action], np.c_[batch.next_obs, action]]).astype(np.float64)
    values = []
    for i in range(2):
        critic = jax.tree.map(lambda x: np.asarray(x[i], np.float64), state.params.critic)  # noqa: B023
        torso, old = critic["params"]["Torso_0"], critic["batch_stats"]["Torso_0"]
        x, first = batch_norm(rows, torso["BatchNorm_0"], old["BatchNorm_0"])
        x = np.maximum(dense(torso["Dense_0"], x), 0)
        x, second = batch_norm(x, torso["BatchNorm_1"], old["BatchNorm_1"])
        values.append(dense(critic["params"]["Dense_0"], x)[:, 0])
        new = jax.tree.map(lambda x: x[i], metrics["batch_stats"]["Torso_0"])  # noqa: B023
        for name, expected in (("BatchNorm_0", first), ("BatchNorm_1", second)):
            np.testing.assert_allclose([new[name]["mean"], new[name]["var"]], expected, rtol=1e-4, atol=1e-5)
    q, q_next = np.split(np.stack(values, axis=-1), 2)
    target = batch.reward + 0.9 * (q_next.min(axis=1) - np.exp(state.params.log_alpha) * log_prob)
    error = q - np.asarray(target)[:, None]
    np.testing.assert_allclose(loss, (error**2).mean(axis=0).sum(), rtol=1e-3)
    # No gradient goes through the target.
    np.testing.assert_allclose(grads["params"]["Dense_0"]["bias"][:, 0], 2 * error.mean(axis=0), rtol=1e-3)


def test_crossq_keeps_the_statistics_and_acts_by_them():
    algorithm, state, batch = sac_of("CrossQ")
    act = jax.jit(algorithm.act)
    np.testing.assert_allclose(act(state, batch.obs)[:1], act(state, batch.obs[:1]), rtol=1e-4)
    noise = jnp.zeros((2, 8, 1))
    after, _ = jax.jit(inner(algorithm.step, "update"))(state, (batch, noise))
    for name, optimizer in inner(algorithm.step, "optimizers").items():
        _, opt_state = optimizer.update(jnp.ones(1), optimizer.init(jnp.ones(1)))
        np.testing.assert_allclose(optax.tree.get(opt_state, "mu"), 0.1 if name == "log_alpha" else 0.5, rtol=1e-5)
    for name in ("actor", "critic"):
        old, new = (getattr(x.params, name)["batch_stats"] for x in (state, after))
        assert all((x != y).any() for x, y in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))


def test_the_recurrence_is_a_loop_over_the_steps():
    module, draw = cook("S5"), np.random.default_rng(0)
    memory = module.Memory(num_layers=2)
    x, before = jnp.float32(draw.normal(size=(7, 3, 4))), jnp.float32(draw.normal(size=(3, 12)))
    done = jnp.zeros((7, 3), bool).at[2, 0].set(True).at[5, 1].set(True).at[6, 2].set(True)
    params = memory.init(jax.random.key(0), x, before, done)
    params = jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape), params)
    y, after = jax.jit(memory.apply)(params, x, before, done)

    layers, carried, one = to_float64(params["params"]), np.float64(before), np.float64(before)
    step = jax.jit(partial(memory.apply, done=None))
    for t in range(7):
        z, next_carried = np.float64(x[t]), []
        for i in range(2):
            of = layers[f"Recurrence_{i}"]
            decay = np.exp(-np.exp(of["log_rate"]) + 1j * of["phase"])
            u = layer_norm(layers[f"LayerNorm_{i}"], z) @ of["Dense_0"]["kernel"]
            h = carried[:, 6 * i : 6 * i + 3] + 1j * carried[:, 6 * i + 3 : 6 * i + 6]
            h = decay * h + np.sqrt(1 - np.abs(decay) ** 2) * (u[:, :3] + 1j * u[:, 3:])
            states = np.concatenate([h.real, h.imag], axis=1)
            next_carried.append(states)
            hidden = dense(layers[f"Dense_{2 * i}"], states)
            hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
            z = z + dense(layers[f"Dense_{2 * i + 1}"], hidden)
        states = np.concatenate(next_carried, axis=1)
        np.testing.assert_allclose(y[t], z, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(after[t], states, rtol=1e-3, atol=1e-4)
        _, new = step(params, x[t], jnp.float32(one))
        np.testing.assert_allclose(new, states, rtol=1e-3, atol=1e-4)
        keep = ~np.asarray(done[t])[:, None]
        carried, one = states * keep, np.asarray(new) * keep


def test_the_magnitudes_of_the_recurrence_begin_in_a_ring():
    """Their squares are uniform between 0.9^2 and 0.999^2 (Orvieto et al. 2023, lemma 3.2)."""
    x, memory, begins = jnp.zeros((1, 1, 4)), jnp.zeros((1, 2000)), jnp.zeros((1, 1), bool)
    params = cook("S5").Recurrence().init(jax.random.key(0), x, memory, begins)["params"]
    squares = np.sort(np.exp(-2 * np.exp(np.float64(params["log_rate"]))))
    np.testing.assert_allclose(squares, np.linspace(0.9**2, 0.999**2, 1000), atol=0.02)


def test_redo_is_due_every_few_iterations():
    algorithm, state, _ = ppo_of("ReDo", learning_rate=0.0, redo_threshold=1.0, redo_interval=2)
    step = jax.jit(algorithm.step)
    for iteration, is_due in ((0, False), (1, True), (2, False)):
        after, metrics = step(state, iteration)
        pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True)
        assert any((x != y).any() for x, y in pairs) == is_due
        assert 0 < metrics["dormant"] < 1


def test_redo_resets_dormant_units_and_their_moments():
    algorithm, state, rollout = ppo_of("ReDo", hidden_sizes=(5, 6), redo_threshold=1.0, activation="relu")
    ones = jax.tree.map(jnp.ones_like, optax.tree.get(state.opt_state, "mu"))
    opt_state = optax.tree.set(state.opt_state, mu=ones, nu=ones)
    state = state.replace(opt_state=opt_state)
    dormant = jax.jit(inner(algorithm.step, "find_dormant"))(state, rollout.obs)
    after = jax.jit(inner(algorithm.step, "redo"))(state, dormant, jax.random.key(1))
    relu = lambda x: np.maximum(x, 0)
    for name in ("actor", "critic"):
        old, new = (to_float64(getattr(x.params, name)["params"]) for x in (state, after))
        x, scores = np.float64(rollout.obs), []
        for layer in ("Dense_0", "Dense_1"):
            x = relu(dense(old["Torso_0"][layer], x))
            size = np.abs(x).mean(axis=(0, 1))
            scores.append(size <= size.mean())
        for found, expected in zip(getattr(dormant, name), scores, strict=True):
            np.testing.assert_array_equal(found, expected)

        into = [old["Torso_0"]["Dense_0"], old["Torso_0"]["Dense_1"], old["Dense_0"]]
        out = [new["Torso_0"]["Dense_0"], new["Torso_0"]["Dense_1"], new["Dense_0"]]
        moments = [to_float64(getattr(optax.tree.get(after.opt_state, x), name)["params"]) for x in ("mu", "nu")]
        for i, (before, now) in enumerate(zip(into, out, strict=True)):
            is_new = scores[i] if i < 2 else np.zeros(now["bias"].shape, bool)
            is_cut = scores[i - 1] if i else np.zeros(4, bool)
            touched = is_new[None] | is_cut[:, None]
            assert (now["kernel"][is_cut] == 0).all()
            np.testing.assert_array_equal(now["kernel"][~touched], before["kernel"][~touched])
            assert (now["kernel"] != before["kernel"])[~is_cut][:, is_new].all()
            for tree in moments:
                layer = tree["Torso_0"][f"Dense_{i}"] if i < 2 else tree["Dense_0"]
                np.testing.assert_array_equal(layer["kernel"], ~touched)
                np.testing.assert_array_equal(layer["bias"], ~is_new)


def test_plr_replays_levels_by_rank_and_age():
    algorithm, state, _ = ppo_of(
        "PLR", num_envs=1, num_levels=6, replay_prob=1.0, score_temperature=0.5, staleness_coef=0.3
    )
    score, iteration = np.float32([3, 1, 5, 0.5, 2, 4]), np.int32([9, 2, 8, 5, 1, 9])
    levels = state.levels.replace(score=jnp.asarray(score), iteration=jnp.asarray(iteration))
    choose = jax.jit(jax.vmap(inner(algorithm.step, "choose_levels"), (None, 0, None)))
    chosen = choose(levels, jax.random.split(jax.random.key(1), 20_000), 10)
    by_rank = np.array([1 / (1 + (score > x).sum()) for x in score]) ** 2
    probs = 0.7 * by_rank / by_rank.sum() + 0.3 * (10 - iteration) / (10 - iteration).sum()
    shares = np.bincount(chosen.slot[:, 0], minlength=6) / 20_000
    np.testing.assert_allclose(shares, probs, atol=0.015)
    data = jax.random.key_data
    np.testing.assert_array_equal(data(chosen.playing), np.asarray(data(levels.key))[chosen.slot])
    new = choose(levels.replace(score=levels.score.at[0].set(-jnp.inf)), jax.random.split(jax.random.key(1), 3), 10)
    assert (new.slot == 6).all(), "a slot is empty: new levels"


def test_plr_keeps_the_levels_with_the_highest_scores():
    algorithm, state, _ = ppo_of("PLR", num_levels=4)
    keep = jax.jit(inner(algorithm.step, "keep_levels"))
    old = state.levels.replace(score=jnp.float32([2, 0.5, -jnp.inf, 3]))
    advantage = jnp.float32([[1, -4], [-1, 2]])  # scores 1 and 3
    new, again = keep(old, advantage, 7), keep(old.replace(slot=jnp.int32([3, 0])), advantage, 7)
    assert new.score.tolist() == [2, 3, 1, 3]
    assert new.iteration.tolist() == [0, 7, 7, 0]
    assert again.score.tolist()[0::3] == [3, 1]
    assert again.iteration.tolist() == [7, 0, 0, 7]
    data = jax.random.key_data
    np.testing.assert_array_equal(np.asarray(data(new.key))[[2, 1]], data(old.playing))
    low = keep(old.replace(score=jnp.float32([2, 4, 5, 3])), advantage, 7)
    assert low.score.tolist() == [2, 4, 5, 3], "scores 1 and 3 replace 2 and 3 only if they are higher"


def test_plr_begins_an_iteration_at_its_levels():
    algorithm, state, _ = ppo_of("PLR", num_levels=2, num_steps=1, num_minibatches=1, normalize_obs=True)
    after, _ = jax.jit(algorithm.step)(state, 0)
    start, _ = jax.jit(inner(algorithm.step, "env").reset)(after.levels.playing)
    np.testing.assert_allclose(after.obs_statistics.mean, start.mean(axis=0), rtol=1e-5)


def test_plr_plays_a_level_again():
    algorithm, state, _ = ppo_of("PLR", num_levels=4)
    start = jax.jit(inner(algorithm.step, "env").reset)(state.levels.playing)
    inputs = jnp.zeros((120, 2, 2)), jax.random.split(jax.random.key(0), (120, 2))
    state = state.replace(obs=start[0], env_state=start[1])
    rollout = jax.jit(partial(jax.lax.scan, partial(inner(algorithm.step, "explore"), start)))(state, inputs)[1]
    for i in range(2):  # greedy: all episodes of a level are alike
        length = 1 + np.argmax(rollout.terminated[:, i])
        assert 1 < length < 100
        np.testing.assert_array_equal(rollout.obs[length:, i], rollout.obs[: 120 - length, i])
        assert (rollout.obs[1, i] != rollout.obs[0, i]).any()
