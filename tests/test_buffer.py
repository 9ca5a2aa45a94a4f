"""The ring buffer against a deque."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from common.buffer import add, draw_rows, init_buffer, read, read_windows
from runner.devices.programs import cut_newest

ROW = {"obs": jax.ShapeDtypeStruct((2,), jnp.uint8), "flag": jax.ShapeDtypeStruct((), bool), "x": jnp.float32(0)}


def sample(buffer, key, shape, **window):
    """Transitions or windows [*shape, ...] at rows that are drawn."""
    rows = draw_rows(buffer, key, shape)
    return read_windows(buffer, rows, **window) if window else read(buffer, rows)


def rows(start, n):
    """Transitions whose fields all tell their number."""
    number = np.arange(start, start + n)
    return {
        "obs": np.stack([number % 251] * 2, axis=1).astype(np.uint8),
        "flag": number % 2 == 0,
        "x": np.float32(number),
    }


few = st.sampled_from([1, 2, 3, 5, 8])  # a program is compiled for each shape


@settings(max_examples=60)
@given(capacity=few, sizes=st.lists(few, max_size=8))
def test_holds_what_a_deque_holds(capacity, sizes):
    buffer, model, count = init_buffer(ROW, capacity), collections.deque(maxlen=capacity), 0
    for n in (min(n, capacity) for n in sizes):
        buffer = add(buffer, rows(count, n))
        model.extend(range(count, count + n))
        count += n
    assert buffer.count == count
    assert buffer.size == len(model)
    held = read(buffer, (count - len(model) + np.arange(len(model))) % capacity)  # from the oldest to the newest
    expected = [rows(number, 1) for number in model]
    for name, x in held.items():
        np.testing.assert_array_equal(x, np.concatenate([row[name] for row in expected]) if expected else x[:0])
        assert (x.dtype, x.shape[1:]) == (ROW[name].dtype, ROW[name].shape)


def test_fields_stay_aligned_and_only_written_rows_are_drawn():
    buffer = add(init_buffer(ROW, 50), rows(100, 7))
    batch = sample(buffer, jax.random.key(0), (4, 500))
    assert batch["obs"].shape == (4, 500, 2)
    assert set(np.unique(batch["x"])) == set(range(100, 107))
    np.testing.assert_array_equal(batch["obs"][..., 0], np.asarray(batch["x"]) % 251)
    np.testing.assert_array_equal(batch["flag"], np.asarray(batch["x"]) % 2 == 0)


@struct.dataclass
class Step:
    """The fields that windows need; obs is the number of the row."""

    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: jax.Array
    discount: None = None


def steps(numbers, terminated, truncated):
    """Rewards that no sum hides, and a next observation that tells its row too."""
    number = np.array(numbers, np.float32)
    return Step(number, np.cos(number), np.array(terminated), np.array(truncated), number + 0.5)


def windows_of(history, capacity, n_step, num_envs, gamma):
    """Windows by hand: obs -> reward, discount, terminated and next_obs of the window that begins there."""
    written, windows = history[-capacity:], {}
    for i in range(len(written)):
        window = []
        for number, terminated, truncated in written[i::num_envs][:n_step]:
            window.append((number, terminated))
            if terminated or truncated:
                break
        reward = sum(gamma**k * np.cos(number) for k, (number, _) in enumerate(window))
        windows[window[0][0]] = reward, gamma ** len(window), window[-1][1], window[-1][0] + 0.5
    return windows


@settings(max_examples=20)
@given(st.data())
def test_windows_are_those_of_a_list(data):
    """Several environments, either end or both, a ring that has wrapped or not, sizes that do not divide."""
    num_envs, n_step = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 5))
    capacity, rounds = data.draw(st.integers(num_envs, 13)), data.draw(st.integers(1, 12))
    flags = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=9))
    history = [(i, *flags[i % len(flags)]) for i in range(rounds * num_envs)]
    buffer = init_buffer(jax.tree.map(lambda x: x[0], steps([0], [False], [False])), capacity)
    for i in range(0, len(history), num_envs):
        buffer = add(buffer, steps(*zip(*history[i : i + num_envs], strict=True)))
    expected = windows_of(history, capacity, n_step, num_envs, gamma=0.9)
    batch = sample(buffer, jax.random.key(len(history)), (3, 100), n_step=n_step, num_envs=num_envs, gamma=0.9)
    assert set(np.unique(batch.obs)) == expected.keys()
    values = np.array([expected[number] for number in np.ravel(batch.obs)]).reshape(3, 100, 4)
    for i, field in enumerate(("reward", "discount", "terminated", "next_obs")):
        np.testing.assert_allclose(getattr(batch, field), values[..., i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "reward", "discount", "following"),
    [
        (False, False, 1 + 0.98 + 0.98**2, 0.98**3, 2.5),
        (True, False, 1.98, None, 1.5),
        (True, True, 1.98, None, 1.5),
        (False, True, 1.98, 0.9604, 1.5),
    ],
    ids=["none", "terminated", "both", "truncated"],
)
def test_a_window_stops_where_its_episode_ends(terminated, truncated, reward, discount, following):
    """Rewards of 1, the second of five steps is the last: nothing follows a termination, a state follows a limit."""
    second = np.arange(5) == 1
    rows = steps(np.arange(5), second & terminated, second & truncated).replace(reward=np.ones(5, np.float32))
    buffer = add(init_buffer(jax.tree.map(lambda x: x[0], rows), 8), rows)
    batch = sample(buffer, jax.random.key(0), (64,), n_step=3, num_envs=1, gamma=0.98)
    first = int(np.argmax(np.asarray(batch.obs) == 0))
    np.testing.assert_allclose(batch.reward[first], reward, rtol=1e-6)
    assert batch.terminated[first] == terminated
    assert batch.next_obs[first] == following
    if not terminated:
        np.testing.assert_allclose(batch.discount[first], discount, rtol=1e-6)


@pytest.mark.parametrize("written", [6, 8, 13])
def test_windows_end_where_the_newest_rows_are_cut(written):
    """Two environments: the rows before the cut, also around the end of the ring, do not reach those after it."""
    number = np.arange(written + 4)
    no = np.zeros(written + 4, bool)
    rows = steps(number, no, no).replace(reward=np.ones(written + 4, np.float32))
    before, after = (jax.tree.map(lambda x, part=part: x[part], rows) for part in (np.s_[:written], np.s_[written:]))
    buffer = init_buffer(jax.tree.map(lambda x: x[0], rows), 8)
    for i in range(0, written, 2):
        buffer = add(buffer, jax.tree.map(lambda x, i=i: x[i : i + 2], before))
    cut = cut_newest(buffer, 2)
    assert cut.count == buffer.count
    for name in ("obs", "reward", "terminated", "next_obs"):
        np.testing.assert_array_equal(*(getattr(read(x, np.arange(8)), name) for x in (cut, buffer)))
    batch = sample(add(cut, after), jax.random.key(0), (200,), n_step=3, num_envs=2, gamma=1.0)
    for obs, reward in zip(np.asarray(batch.obs).ravel(), np.asarray(batch.reward), strict=True):
        env_rows = np.arange(obs, written + 4, 2)
        is_before = obs < written
        assert reward == min(3, ((env_rows < written) == is_before).sum()), obs


def test_rows_that_do_not_tell_a_time_limit_are_not_cut():
    buffer = add(init_buffer(ROW, 8), rows(0, 4))
    jax.tree.map(np.testing.assert_array_equal, cut_newest(buffer, 2), buffer)


@pytest.mark.parametrize("written", [13, 64, 200])
def test_draws_uniformly(written):
    buffer = init_buffer(ROW, 64)
    for start in range(0, written, 1):
        buffer = add(buffer, rows(start, 1))
    x = np.asarray(sample(buffer, jax.random.key(1), (64_000,))["x"]).astype(int)
    counts = np.bincount(x - x.min())
    assert len(counts) == min(written, 64)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("capacity", "written", "num_new"), [(10, 4, 2), (10, 10, 3), (1000, 3, 1)])
def test_a_round_draws_from_the_rows_written_by_then_alone(capacity, written, num_new):
    buffer = add(init_buffer(ROW, capacity), rows(0, written))
    drawn = np.asarray(draw_rows(buffer, jax.random.key(0), (4, 2, 300), num_new))
    for i, x in enumerate(drawn):
        assert set(np.unique(x)) == set(range(min(written + (i + 1) * num_new, capacity)))


def test_fields_of_one_dtype_share_an_array():
    buffer = init_buffer({"a": jnp.zeros((2, 3)), "b": jnp.zeros(()), "c": jnp.zeros(4, bool)}, 5)
    assert {name: x.shape for name, x in buffer.arrays.items()} == {"float32": (5, 7), "bool": (5, 4)}


def test_different_keys_draw_different_rows():
    buffer = add(init_buffer(ROW, 50), rows(0, 50))
    first, second = (np.asarray(sample(buffer, jax.random.key(i), (32,))["x"]) for i in range(2))
    assert (first != second).any()


def test_more_than_the_capacity_is_refused():
    with pytest.raises(ValueError, match="5 transitions do not fit a buffer of 4"):
        add(init_buffer(ROW, 4), rows(0, 5))


@pytest.mark.parametrize("n", [1, 4])
def test_adding_in_a_loop_copies_no_buffer(n):
    """The compiled loop has no copy as large as the buffer, with one trial and with several."""

    def loop(buffer, keys):
        def body(buffer, key):
            buffer = add(buffer, {"obs": jax.random.normal(key, (3, 5))})
            return buffer, sample(buffer, key, (4,))["obs"].sum()

        return jax.lax.scan(body, buffer, keys)

    capacity = 100_003
    one = init_buffer({"obs": jax.ShapeDtypeStruct((5,), jnp.float32)}, capacity)
    buffers = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)
    keys = jax.vmap(lambda i: jax.random.split(jax.random.key(i), 10))(jnp.arange(n))
    compiled = jax.jit(jax.vmap(loop), donate_argnums=0).lower(buffers, keys).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.1 * n * capacity * 5 * 4


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        (
            {"obs": jnp.zeros((2, 4)), "reward": jnp.zeros(2), "cost": jnp.zeros(2)},
            r"cost is \(\) in a transition and absent",
        ),
        ({"obs": jnp.zeros((2, 4))}, r"reward is absent in a transition and \(\) in a row of the buffer"),
        ({"obs": jnp.zeros((2, 3)), "reward": jnp.zeros(2)}, r"obs is \(3,\) in a transition and \(4,\) in a row"),
    ],
)
def test_a_transition_of_other_fields_names_the_field(transition, message):
    buffer = init_buffer({"obs": jnp.zeros(4), "reward": jnp.float32(0)}, 10)
    with pytest.raises(ValueError, match=message):
        add(buffer, transition)
