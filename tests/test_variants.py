"""The variants: what they add to the script they are made from. Pieces that they share with it: test_alike.py."""

import json
from dataclasses import replace
from functools import cache, partial

import categorical_dqn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import ppo_rnn
import pqn
import probes
import pytest
import reppo
import sac_discrete
from flax import struct
from helpers import call, small_run
from reference import Adam, dense, to_float64
from test_ppo import gae_loop, log_prob_and_entropy, reference_updates
from test_scripts import BUILT, assert_float32, data, exempt_dependencies, few_objects, modes  # noqa: F401  # fixtures

from runner.files.load import load

probes.register()
NUM_SEEDS = 3
GAMMA = 0.9
VARIANTS = {
    "categorical_dqn": categorical_dqn,
    "ppo_rnn": ppo_rnn,
    "sac_discrete": sac_discrete,
    "pqn": pqn,
    "reppo": reppo,
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]


@cache
def trained(module, config, settings=((),)):
    """Algorithm, and final State and last metrics [num_settings, num_seeds, ...] of runs with swept float fields."""
    train = lambda swept, key: module.make_train(replace(config, **swept))(key)
    train = jax.vmap(jax.vmap(train, in_axes=(None, 0)), in_axes=(0, None), axis_size=len(settings))
    swept = {name: jnp.float32([dict(setting)[name] for setting in settings]) for name in dict(settings[0])}
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    state, metrics = jax.jit(train, compiler_options=probes.OPTIMIZED)(swept, keys)
    return module.make(config), state, jax.tree.map(lambda x: np.asarray(x)[..., -1], metrics)


# -- Recurrent PPO: the memory -----------------------------------------------------------------------------------------

RECURRENT = ppo_rnn.Config("Probe-Recorder", 100, 3, 16, hidden_sizes=(8,), num_minibatches=3, memory_size=4)


def replay(algorithm, state, record, env, starts_again=True):
    """The memories [2, width] after the recorded steps of an environment, observation by observation."""
    start, memories = algorithm.initial_memory(1), []
    for function in map(jax.jit, (algorithm.act, algorithm.value)):
        memory = start
        for i in range(int(record.count[env])):
            _, memory = function(state, record.obs[env, i][None], memory)
            if starts_again and (record.terminated[env, i] or record.truncated[env, i]):
                memory = start
        memories.append(memory[0])
    return np.stack(memories)


@cache
def collected(env, cell="gru"):
    """Algorithm, State and metrics [2, 3] after three iterations, of a trial that does not learn and one that does."""
    config = replace(RECURRENT, env=env, cell=cell, total_timesteps=150, clip_eps=1e-5)

    def train(learning_rate, key):
        return ppo_rnn.make_train(replace(config, learning_rate=learning_rate))(key)

    rates = jnp.array([0.0, 1e-2])
    return ppo_rnn.make(config), *jax.jit(jax.vmap(train, in_axes=(0, None)))(rates, jax.random.key(1))


@pytest.mark.parametrize("cell", [pytest.param("gru", marks=pytest.mark.quick), "lstm"])
def test_the_memory_starts_again_after_either_end(cell):
    """Without learning, the memory is that of a loop over `act` in which it is zero where episodes begin."""
    algorithm, state, _ = collected("Probe-Recorder", cell)
    state = jax.tree.map(lambda x: x[0], state)
    record = jax.tree.map(np.asarray, probes.recorded(state.env_state))
    assert (record.terminated & ~record.truncated)[:, :48].any(axis=1).all()
    assert (record.truncated & ~record.terminated)[:, :48].any(axis=1).all()
    for env in range(3):
        expected = replay(algorithm, state, record, env)
        np.testing.assert_allclose(state.memory[env], expected, rtol=1e-4, atol=1e-6)
        if np.any(expected):
            assert not np.allclose(state.memory[env], replay(algorithm, state, record, env, starts_again=False))
    assert np.any(state.memory)


@pytest.mark.parametrize(
    ("env", "cell"),
    [
        pytest.param("Probe-Recorder", "gru", marks=pytest.mark.quick),
        ("Probe-Recorder", "lstm"),
        ("Probe-Recorder-Continuous", "gru"),
    ],
)
def test_without_learning_every_ratio_is_one(env, cell):
    """In every minibatch of three iterations: sequences are valued as they were collected, ends and memory included.
    The trial that learns is the control."""
    _, state, metrics = collected(env, cell)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    np.testing.assert_array_equal(metrics["clip_fraction"][0], [0.0] * 3)
    np.testing.assert_allclose(metrics["approx_kl"][0], 0.0, atol=1e-9)
    assert metrics["clip_fraction"][1].min() > 0.3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(params, memory, x, reset_first=False, swapped=False):
    """Cho et al. 2014, with the reset gate after the product; in float64, gate by gate."""
    kernel, bias, recurrent = (np.split(p, 3, axis=-1) for p in params)
    reset, update = (sigmoid(x @ kernel[i] + bias[i] + memory @ recurrent[i]) for i in range(2))
    from_memory = (reset * memory) @ recurrent[2] if reset_first else reset * (memory @ recurrent[2])
    candidate = np.tanh(x @ kernel[2] + bias[2] + from_memory)
    update = 1 - update if swapped else update
    memory = update * memory + (1 - update) * candidate
    return memory, memory


def lstm(params, memory, x, forget_bias=1.0, peephole=0.0):
    """Gers et al. 2000, without peepholes; in float64, gate by gate."""
    kernel, bias, recurrent = (np.split(p, 4, axis=-1) for p in params)
    output, cell = np.split(memory, 2, axis=-1)
    write, keep, candidate, show = (x @ kernel[i] + bias[i] + output @ recurrent[i] for i in range(4))
    cell = sigmoid(keep + forget_bias + peephole * cell) * cell + sigmoid(write) * np.tanh(candidate)
    output = sigmoid(show) * np.tanh(cell)
    return output, np.concatenate([output, cell], axis=-1)


WRONG = {
    "gru": [partial(gru, reset_first=True), partial(gru, swapped=True)],
    "lstm": [partial(lstm, forget_bias=0.0), partial(lstm, peephole=0.3)],
}


@pytest.mark.quick
@pytest.mark.parametrize(("name", "model"), [("gru", gru), ("lstm", lstm)])
def test_a_cell_equals_numpy(name, model):
    """Features and memory of sequences in which episodes end, and of single steps; the wrong models differ."""
    rng, num_steps = np.random.default_rng(0), 12
    x, done = rng.normal(size=(num_steps, 2, 3)), rng.random((num_steps, 2)) < 0.3
    memory = rng.normal(size=(2, 5 if name == "gru" else 10))
    cell = ppo_rnn.Memory(name)
    inputs = jnp.float32(x), jnp.float32(memory), jnp.asarray(done)
    params = jax.tree.map(
        lambda p: p + 0.3 * jnp.sin(jnp.arange(p.size)).reshape(p.shape), cell.init(jax.random.key(0), *inputs)
    )
    found = [np.asarray(part) for part in cell.apply(params, *inputs)]
    dense = params["params"]["Dense_0"]
    arrays = [np.float64(p) for p in (dense["kernel"], dense["bias"], params["params"]["kernel"])]

    def run(model):
        now, rows = memory, []
        for step in range(num_steps):
            rows.append(model(arrays, now, x[step]))
            now = np.where(done[step][:, None], 0.0, rows[-1][1])
        return [np.stack(part) for part in zip(*rows, strict=True)]

    for part, expected in zip(found, run(model), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)
    for wrong in WRONG[name]:
        assert any(np.abs(part - other).max() > 0.01 for part, other in zip(found, run(wrong), strict=True))
    for part, expected in zip(cell.apply(params, inputs[0][0], inputs[1], None), found, strict=True):
        np.testing.assert_allclose(part, expected[0], rtol=1e-4, atol=1e-5)


RECORDED = ppo_rnn.Config("Probe-Recorder", 100, num_envs=3, num_steps=8, num_epochs=3, num_minibatches=1)
RECORDED = replace(RECORDED, hidden_sizes=(4,), cell="gru", memory_size=2, learning_rate=0.1, clip_eps=0.1, gamma=0.9)


def sequences(network, memory, obs, done):
    """Outputs [num_steps, num_envs, n] of a network with a GRU, and its memory after each step."""
    torso, parts, outputs, memories = network["Torso_0"], network["Memory_0"], [], []
    arrays = parts["Dense_0"]["kernel"], parts["Dense_0"]["bias"], parts["kernel"]
    for x, ended in zip(obs, done, strict=True):
        features, after = gru(arrays, memory, np.tanh(dense(torso["Dense_0"], x)))
        outputs.append(dense(network["Dense_0"], features))
        memories.append(after)
        memory = np.where(ended[:, None], 0.0, after)
    return np.stack(outputs), np.stack(memories)


@pytest.mark.quick
def test_an_iteration_of_recurrent_ppo_equals_numpy():
    """Parameters, memories and metrics after two iterations of three updates on all sequences."""
    algorithm = ppo_rnn.make(RECORDED)
    state, step = jax.jit(algorithm.init)(jax.random.key(2)), jax.jit(algorithm.step)
    adam = Adam(to_float64(state.params))
    for iteration in range(2):
        before, (state, metrics) = state, step(state, iteration)
        params, memory = to_float64(before.params), np.float64(before.memory)
        record = probes.recorded(state.env_state)
        record = record.replace(count=record.obs)
        rows = slice(iteration * RECORDED.num_steps, (iteration + 1) * RECORDED.num_steps)
        history = jax.tree.map(lambda x, rows=rows: np.moveaxis(np.asarray(x), 0, 1)[rows], record)
        done = history.terminated | history.truncated

        def forward(_, params, obs, memory=memory, done=done):
            networks = enumerate((params.actor["params"], params.critic["params"]))
            outputs, value = (sequences(x, memory[:, i], obs, done)[0] for i, x in networks)
            return outputs, value[..., 0]

        outputs, value = forward(RECORDED, params, history.obs)
        (_, of_actor), (_, of_critic) = (
            sequences(x["params"], memory[:, i], history.obs, done) for i, x in enumerate((params.actor, params.critic))
        )
        alone = np.ones((1, RECORDED.num_envs), bool)
        next_value = np.stack(
            [
                sequences(params.critic["params"], after, obs[None], alone)[0][0, :, 0]
                for after, obs in zip(of_critic, history.next_obs, strict=True)
            ]
        )
        flags = history.terminated, history.truncated
        log_prob, _ = log_prob_and_entropy(params, outputs, history.action)
        advantage, target = gae_loop(history.reward, value, next_value, *flags, RECORDED.gamma, RECORDED.gae_lambda)
        batch = {"obs": history.obs, "action": history.action, "log_prob": log_prob, "value": value}
        batch |= {"advantage": advantage, "target": target}
        params, expected = reference_updates(RECORDED, params, batch, adam, iteration, forward)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-4), state.params, params)
        last = np.stack([of_actor[-1], of_critic[-1]], axis=1)
        np.testing.assert_allclose(state.memory, np.where(done[-1][:, None, None], 0.0, last), atol=1e-5)
        for name, x in expected.items():
            np.testing.assert_allclose(metrics[name], x, rtol=1e-3, atol=1e-5, err_msg=name)
        assert metrics["clip_fraction"] > 0.05


def test_each_network_reads_its_memory():
    algorithm = ppo_rnn.make(RECURRENT)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    state = state.replace(params=jax.tree.map(lambda x: 10 * x, state.params))
    obs, start = jax.random.normal(jax.random.key(1), (64, 3)), algorithm.initial_memory(64)
    for function in (algorithm.act, algorithm.value):
        found, expected = function(state, obs, start + 0.9), function(state, obs, start)
        assert all((x != y).any() for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize(("cell", "width"), [("gru", 4), ("lstm", 8)])
def test_act_and_value_take_one_observation_or_many(cell, width):
    algorithm = ppo_rnn.make(replace(RECURRENT, cell=cell))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    obs, memory = jnp.ones((5, 3)), algorithm.initial_memory(5)
    for keys in ((), (jax.random.key(1),)):
        many, one = algorithm.act(state, obs, memory, *keys), algorithm.act(state, obs[0], memory[0], *keys)
        assert [x.shape for x in many] == [(5,), (5, width)]
        assert [x.shape for x in one] == [(), (width,)]
        np.testing.assert_allclose(many[1][0], one[1], rtol=1e-5, atol=1e-6)
    assert [x.shape for x in algorithm.value(state, obs, memory)] == [(5,), (5, width)]
    assert [x.shape for x in algorithm.value(state, obs[0], memory[0])] == [(), (width,)]


def test_minibatches_are_of_whole_environments():
    with pytest.raises(ValueError, match="num_envs = 3 must be a multiple of num_minibatches = 2"):
        ppo_rnn.make(replace(RECURRENT, num_minibatches=2))
    with pytest.raises(ValueError, match="must be a multiple of num_minibatches = 3, at least 2 times"):
        ppo_rnn.make(replace(RECURRENT, num_steps=1))  # a single advantage, normalised, is 0


# -- Recurrent PPO: problems with known answers ------------------------------------------------------------------------


@struct.dataclass
class SignalState:
    sign: jax.Array
    is_limit: jax.Array
    truncated: jax.Array


class Signal(probes.Probe):
    """The first observation, (sign, is_limit), is zero afterwards. Each step pays the sign and ends the episode with
    probability 1/4: by its limit where is_limit is 1, truly where it is -1."""

    obs_shape = (2,)

    def reset_env(self, key, params):
        obs = jax.random.rademacher(key, (2,), jnp.float32)
        return obs, SignalState(*obs, jnp.bool_(False))

    def step_env(self, key, state, action, params):
        ends, is_limit = jax.random.uniform(key) < 0.25, state.is_limit > 0
        return jnp.zeros(2), state.replace(truncated=ends & is_limit), state.sign, ends & ~is_limit, {}


if "Probe-Signal" not in gymnax.registered_envs:
    gymnax.register("Probe-Signal", Signal)
SIGNALS = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
VALUES = SIGNALS[:, 0] / (1 - GAMMA * np.array([1.0, 1.0, 0.75, 0.75]))


def signal_values():
    """Learned values of the four signals when they are seen, [num_seeds, 4], and of the two steps that follow."""
    fields = {"learning_rate": 0.01, "gamma": GAMMA, "gae_lambda": 0.5, "ent_coef": 0.0, "hidden_sizes": (16,)}
    config = ppo_rnn.Config("Probe-Signal", 80_000, 16, 20, num_minibatches=2, memory_size=8, **fields)
    algorithm, state, _ = trained(ppo_rnn, config)

    def values(state):
        memory, found = algorithm.initial_memory(4), []
        for obs in (SIGNALS, 0 * SIGNALS, 0 * SIGNALS):
            v, memory = algorithm.value(state, jnp.float32(obs), memory)
            found.append(v)
        return jnp.stack(found)

    return np.moveaxis(jax.vmap(values)(jax.tree.map(lambda x: x[0], state)), 1, 0)


def test_values_are_remembered_and_a_time_limit_is_not_an_end():
    """After a limit the true next observation tells nothing: its value is right only with the memory of the episode
    that was cut, this step's observation included."""
    for values in signal_values():
        np.testing.assert_allclose(values, [VALUES] * NUM_SEEDS, atol=0.5)


def evaluated(script, folder, **changes):
    """Greedy returns of the seeds of a run of the whole command."""
    arguments = small_run(script, **changes, out=str(folder), name="run", eval_episodes=32)
    result = call(script, *arguments)
    assert result.status == 0, result
    summary = json.loads((folder / script / changes["env"] / "run" / "summary.json").read_text())
    return np.array(summary["eval_episode_return"]["per_seed"])


CHAIN = {
    "env": "MemoryChain-bsuite:memory_length=3",
    "total_timesteps": 24_000,
    "num_envs": 8,
    "num_steps": 32,
    "num_epochs": 4,
    "learning_rate": 5e-3,
    "num_minibatches": 2,
}


def test_the_first_observation_is_recalled_in_evaluation_too(folder):
    """MemoryChain pays 1 for the action that its first observation names, else -1, three steps later."""
    returns = evaluated("ppo_rnn", folder, **CHAIN, memory_size=16)
    np.testing.assert_array_equal(returns, 1.0)
    _, algorithm, state = load(folder / "ppo_rnn" / CHAIN["env"] / "run", seed_index=1)
    memory = algorithm.initial_memory(2)
    for i in range(4):  # observed: the time that remains, the query, the context in the first step only
        obs = jnp.array([[1 - i / 3, 0.0, context * (i == 0)] for context in (-1.0, 1.0)])
        action, memory = algorithm.act(state, obs, memory)
    np.testing.assert_array_equal(action, [0, 1])


def test_without_a_memory_recall_is_chance(folder):
    """The negative control. 32 episodes of chance have a standard deviation of 0.18."""
    assert np.abs(evaluated("ppo", folder, **CHAIN)).max() < 0.7


# -- Discrete SAC ------------------------------------------------------------------------------------------------------

ALPHAS = (1e-3, 0.3, 1.0)
SECOND = (0.0, 1.0)  # rewards of the second step
ROOMS = [
    probes.Room(reward=(0.0, 0.0), following=1, limit=2),
    probes.Room(reward=SECOND, limit=2, start=False),
    probes.Room(reward=(1.0, -1.0)),
    probes.Room(limit=5, flags="truncated"),
    probes.Room(limit=5, flags="terminated"),
]
if "Probe-Soft" not in gymnax.registered_envs:
    gymnax.register("Probe-Soft", lambda: probes.Rooms(ROOMS))
    gymnax.register("Probe-Paying", lambda: probes.Rooms(probes.ROOMS[probes.PAYING]))
SOFT = sac_discrete.Config(
    "Probe-Soft",
    total_timesteps=25_600,
    num_envs=8,
    steps_per_iteration=1_520,
    learning_starts=640,
    buffer_size=20_000,
    batch_size=64,
    train_interval=8,
    gradient_steps=2,
    tau=0.05,
    actor_learning_rate=0.01,
    critic_learning_rate=0.01,
    alpha_learning_rate=0.0,
    gamma=GAMMA,
    hidden_sizes=(32,),
)


def soft(i):
    """The probability of action 1 in each room, and the value, [num_seeds, 5] each, at a temperature."""
    algorithm, state, _ = trained(sac_discrete, SOFT, tuple((("alpha", alpha),) for alpha in ALPHAS))
    state, obs = jax.tree.map(lambda x: x[i], state), jnp.eye(len(ROOMS))
    torso = partial(sac_discrete.Torso, SOFT.hidden_sizes, SOFT.activation, SOFT.layer_norm)
    actor = sac_discrete.Actor(2, torso)
    probs = jax.vmap(lambda state: actor.apply(state.params.actor, obs).probs[:, 1])(state)
    return np.asarray(probs), np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, obs))


@pytest.mark.parametrize("i", range(len(ALPHAS)))
def test_soft_values_and_policies(i):
    """A step earlier the second step is worth alpha * logsumexp(rewards / alpha), discounted; nothing follows an end.

    The best policy is softmax(rewards / alpha). At the smallest alpha this is the hard maximum, the negative control.
    The mean of the seeds, each of which is still on the move: their learning rate is high and not annealed.
    """
    probs, values = soft(i)
    alpha = ALPHAS[i]
    soft_maximum = alpha * np.logaddexp(SECOND[0] / alpha, SECOND[1] / alpha)
    np.testing.assert_allclose(values[:, :3].mean(axis=0), [GAMMA * soft_maximum, 1.0, 1.0], atol=0.05)
    gaps = np.clip(np.array([0.0, SECOND[1] - SECOND[0], -2.0]) / alpha, -500, 500)
    measured = slice(0 if alpha > 0.1 else 1, None)  # rounding decides between equal actions where alpha is nearly 0
    expected = 1 / (1 + np.exp(-gaps[measured]))
    np.testing.assert_allclose(probs[:, :3].mean(axis=0)[measured], expected, atol=0.05)


def test_the_soft_values_tell_the_temperatures_apart():
    hard, _, warm = (soft(i)[1][:, 0] for i in range(3))
    assert (warm > hard + 0.2).all()


def test_the_temperature_brings_the_entropy_to_its_target():
    """Actions differ by 1 in every room: an entropy tells the probability p of the better one, alpha = 1 / logit(p)."""
    config = replace(SOFT, env="Probe-Paying", alpha_learning_rate=0.01)
    targets = (0.3, 0.7)
    _, _, metrics = trained(sac_discrete, config, tuple((("target_entropy", target),) for target in targets))
    p = np.linspace(0.5, 1, 100_001)[1:-1]
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    for i, target in enumerate(targets):
        best = p[np.abs(entropy - target * np.log(2)).argmin()]
        np.testing.assert_allclose(metrics["entropy"][i], target * np.log(2), atol=0.05)
        np.testing.assert_allclose(metrics["alpha"][i], 1 / np.log(best / (1 - best)), rtol=0.15)


def test_a_time_limit_is_not_an_end():
    """Reward 1 for ever, a uniform policy of entropy log 2; where the limit is an end, the one-step fixed point."""
    going_on, ending = soft(1)[1][:, 3:].T
    np.testing.assert_allclose(going_on, (1 + GAMMA * ALPHAS[1] * np.log(2)) / (1 - GAMMA), rtol=0.05)
    assert (ending < 0.6 * going_on).all()


# -- What every script promises ----------------------------------------------------------------------------------------

REPLAY = {"num_envs": 2, "steps_per_iteration": 24, "learning_starts": 24, "buffer_size": 64, "batch_size": 8}
SHORT = {
    "categorical_dqn": categorical_dqn.Config("Probe-Recorder", target_interval=24, **REPLAY),
    "ppo_rnn": RECURRENT,
    "sac_discrete": sac_discrete.Config("Probe-Recorder", **REPLAY),
    "pqn": pqn.Config("Probe-Recorder", num_envs=2, num_steps=12, num_epochs=2, num_minibatches=2),
    "reppo": reppo.Config("Probe-Recorder-Continuous", num_envs=2, num_steps=12, num_epochs=2, num_minibatches=2),
}


def short_config(variant, iterations=2, **changes):
    config = replace(SHORT[variant], hidden_sizes=(8,), normalize_obs=True, **changes)
    return replace(config, total_timesteps=config.env_steps(iterations))


@each_variant
@pytest.mark.usefixtures("exempt_dependencies", "few_objects")
def test_two_iterations_build_in_every_mode(variant):
    module, config = VARIANTS[variant], short_config(variant, layer_norm=False)
    with modes(**BUILT):
        state, metrics = jax.eval_shape(jax.jit(module.make_train(config)), jax.random.key(0))
        algorithm = module.make(config)
        memory = () if variant != "ppo_rnn" else (algorithm.initial_memory(len(state.obs)),)
        jax.eval_shape(algorithm.act, state, state.obs, *memory)
        jax.eval_shape(algorithm.value, state, state.obs, *memory)
    assert metrics["episode_return"].shape == (2,)


@each_variant
def test_parameters_and_metrics_are_float32_where_x64_is_on(variant):
    assert_float32(VARIANTS[variant].make_train(short_config(variant)))
