"""common/suites/mujoco.py: a step is Gymnasium's to the last bit, whatever process, seed or device computes it."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rank_promotion

import common.suites.mujoco as suite_module
from common.environment import Environment, make_env
from common.suites import import_suite, make_suite
from runner.devices.placement import make_placement

pytestmark = pytest.mark.slow

MODELS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum")
MODELS += ("Pusher", "Reacher", "Swimmer", "Walker2d")
TASKS = [f"{model}-v{version}" for model in MODELS for version in (4, 5) if (model, version) != ("Pusher", 4)]
NUM_STEPS, NUM_ENVS = 50, 2


@pytest.fixture(autouse=True)
def promotion():
    """A suite promotes as it likes."""
    pytest.importorskip("mujoco")
    with rank_promotion("allow"):
        yield


@functools.cache
def programs_of(name):
    """A suite, and its functions for NUM_ENVS environments, which take turns with one model on the host."""
    suite, _ = make_suite(f"mujoco/{name}")
    return suite, jax.jit(jax.vmap(suite.reset)), jax.jit(jax.vmap(suite.step))


def count_different_steps(name, task):
    """In how many steps observation, reward, end or scalars of one environment at least are not Gymnasium's."""
    suite, reset, step = programs_of(name)
    beside = [suite_module.find_class(task)() for _ in range(NUM_ENVS)]
    seed_of = lambda key: int.from_bytes(np.asarray(jax.random.bits(key, (2,))).tobytes(), "little")
    keys = jax.random.split(jax.random.key(0), (NUM_STEPS, NUM_ENVS))
    low, high = suite.action_space.low, suite.action_space.high
    actions = np.asarray(
        jax.random.uniform(jax.random.key(1), (NUM_STEPS, NUM_ENVS, *low.shape), minval=low, maxval=high)
    )
    is_over, different = True, 0
    for row, action in zip(keys, actions, strict=True):
        if is_over:
            obs, state = reset(row)
            starts = [env.reset(seed=seed_of(key))[0] for env, key in zip(beside, row, strict=True)]
            np.testing.assert_array_equal(obs, np.float32(starts))
        obs, state, reward, terminated, info = step(row, state, action)
        told = [env.step(x) for env, x in zip(beside, action, strict=True)]
        theirs = [np.float32([x[i] for x in told]) for i in range(3)]
        scalars = {key: np.float32([x[4][key] for x in told]) for key in told[0][4] if np.ndim(told[0][4][key]) == 0}
        scalars["physics_failed"] = np.zeros(NUM_ENVS)
        assert info.keys() == scalars.keys()
        pairs = [*zip((obs, reward, terminated), theirs, strict=True), *((info[key], scalars[key]) for key in scalars)]
        different += not all(np.array_equal(x, y) for x, y in pairs)
        is_over = any(x[2] for x in told)
    return different


@pytest.mark.parametrize("task", TASKS)
def test_a_step_is_gymnasiums_to_the_last_bit(task):
    assert count_different_steps(task, task) == 0


def test_the_way_of_a_gpu_is_the_same(monkeypatch):
    """There arrays are copied to the host and back."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda row, cpu, default: default(row))
    name = "Hopper-v5:reset_noise_scale=0.005"  # its default, for programs of its own
    assert count_different_steps(name, "Hopper-v5") == 0


def forget_warm_start(host):
    host.env.data.qacc_warmstart.fill(0)


def round_state(host):
    for field, _ in host.kept:
        field[:] = np.float32(field)


def place_by_positions(host):
    import mujoco

    mujoco.mj_kinematics(host.env.model, host.env.data)


@pytest.mark.parametrize("change", [forget_warm_start, round_state, place_by_positions])
def test_a_state_that_keeps_less_is_noticed(change, monkeypatch):
    restore = suite_module.Host.restore
    monkeypatch.setattr(suite_module.Host, "restore", lambda host, row: (restore(host, row), change(host)))
    assert count_different_steps("Humanoid-v4", "Humanoid-v4") > NUM_STEPS // 10


def test_options_are_arguments_of_gymnasium():
    assert count_different_steps("Ant-v5:frame_skip=4", "Ant-v5") == NUM_STEPS
    assert make_env("mujoco/Hopper-v4:exclude_current_positions_from_observation=False").obs_shape == (12,)
    assert make_env("mujoco/Ant-v5:max_episode_steps=7,forward_reward_weight=0.5").max_episode_steps == 7
    with pytest.raises(ValueError, match="has no option xml_file"):
        make_env("mujoco/Ant-v5:xml_file=ant.xml")


def play(env, num_steps, keys, carry=None):
    """The observation and the state of 3 environments after a number of steps, from the start without a carry."""

    def step(carry, key):
        _, env_state = carry
        low, high = env.action_space.low, env.action_space.high
        action = jax.random.uniform(key, (3, *low.shape), minval=low, maxval=high)
        return env.step(jax.random.split(key, 3), env_state, action)[:2], None

    carry = env.reset(jax.random.split(keys[0], 3)) if carry is None else carry
    return jax.lax.scan(step, carry, keys[:num_steps])[0]


def make_hopper():
    """Episodes of 20 steps, so that starts are renewed and used."""
    suite, _ = make_suite("mujoco/Hopper-v5")
    return Environment(suite, max_episode_steps=20)


def test_trials_devices_and_processes_do_not_matter():
    """Seeds of one program, of two devices, and alone; and half of the steps with another Suite, as after a resume."""
    env, keys = make_hopper(), jax.random.split(jax.random.key(0), (2, 60))
    run = functools.partial(play, env, 60)
    together = jax.jit(jax.vmap(run))(keys)
    placement = make_placement(2, 2)
    assert_equal(jax.jit(placement.each(run))(placement.place(keys)), together)
    alone = jax.jit(run)(keys[1])
    assert_equal(alone, jax.tree.map(lambda x: x[1], together))
    half = jax.tree.map(np.asarray, jax.jit(functools.partial(play, env, 30))(keys[1]))
    assert_equal(jax.jit(functools.partial(play, make_hopper(), 30))(keys[1, 30:], half), alone)


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_physics_that_is_no_longer_finite_ends_the_episode():
    """MuJoCo resets itself, with finite numbers, so the observation alone would not tell."""
    suite, reset, step = programs_of("Hopper-v5")
    keys = jax.random.split(jax.random.key(0), NUM_ENVS)
    _, state = reset(keys)
    kept = np.array(state)
    kept.view(np.float64)[0, suite._idle[0].kept[1][1]] = 1e12
    actions = jnp.zeros((NUM_ENVS, 3))
    obs, _, reward, terminated, info = step(keys, jnp.asarray(kept), actions)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((obs, reward, info)))
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_array_equal(info["physics_failed"], [True, False])
    *_, info = step(keys, state, actions)
    assert not info["physics_failed"].any()


def test_names_are_those_that_run():
    assert suite_module.names() == TASKS
    for name, message in {"Pusher-v4": "take mujoco/Pusher-v5", "Hopper-v3": "mujoco/Hopper-v4"}.items():
        with pytest.raises(ValueError, match=message):
            make_env(f"mujoco/{name}")


def test_without_mujoco_an_error_says_what_to_install(monkeypatch):
    """Gymnasium itself is there, as gymnax needs it, and registers the tasks."""
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"^needs gymnasium\[mujoco\]: pip install 'gymnasium\[mujoco\]==\S+' "):
        import_suite("mujoco")


def test_an_episode_is_drawn_where_opengl_runs(monkeypatch):
    """A picture shows the state that it is given: the same one from the same state, another one from another."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    suite, reset, _ = programs_of("Hopper-v5")
    try:
        ending, render = suite.renderer()
    except ValueError as error:
        pytest.skip(str(error))
    drawn = []
    monkeypatch.setattr("common.suites.write_gif", lambda frames, *_: drawn.extend(frames))
    _, states = reset(jax.random.split(jax.random.key(0), NUM_ENVS))
    render(iter([*states, states[0]]), np.zeros(3), "unwritten.gif")
    assert ending == ".gif"
    assert drawn[0].shape == (320, 320, 3)
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert (drawn[0] != drawn[1]).any()


def test_where_opengl_does_not_run_an_error_is_one_line(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    with pytest.raises(ValueError, match="MuJoCo cannot draw here with MUJOCO_GL=nothing; try") as caught:
        programs_of("Hopper-v5")[0].renderer()
    assert "\n" not in str(caught.value)
