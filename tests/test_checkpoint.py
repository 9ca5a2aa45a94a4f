"""common/checkpoint.py: what is restored is bit by bit what was saved, or an error that names the checkpoint."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from common.checkpoint import import_script, latest_iteration, restore, save

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see `saved`
NUM_LANES = 3


@struct.dataclass
class State:
    """A leaf of every kind that the scripts have; `params` is too large to be stored inside an index."""

    params: dict
    key: jax.Array
    count: jax.Array
    flag: jax.Array
    pixels: jax.Array
    nothing: None
    buffer: dict | None


def make_state(seed=0):
    keys = jax.random.split(jax.random.key(seed), NUM_LANES)
    buffer = {"obs": jax.random.normal(jax.random.key(seed + 1), (NUM_LANES, 700)), "size": jnp.full(NUM_LANES, 7)}
    return State(
        params={"w": jax.vmap(lambda key: jax.random.normal(key, (40, 20)))(keys), "odd": ODD_FLOATS},
        key=keys,
        count=jnp.array([-(2**31), -1, 2**31 - 1], jnp.int32),
        flag=jnp.array([True, False, True]),
        pixels=jnp.array([[0, 255], [7, 8], [1, 2]], jnp.uint8),
        nothing=None,
        buffer=buffer,
    )


ODD_FLOATS = jnp.array([[jnp.nan, -0.0], [jnp.inf, 1e-40], [-jnp.inf, 3.4e38]], jnp.float32)


def abstract(state):
    return jax.eval_shape(lambda: state)


def raw(x):
    """The bytes of an array, also of one of keys."""
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x).tobytes()


def is_equal(a, b):
    """Bit by bit, of the same structure, dtypes and shapes."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and raw(x) == raw(y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.fixture(scope="module")
def state():
    return make_state()


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory):
    """Folder of a checkpoint of iteration 7. Tests that change it do so in a copy."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoint"
    save(directory, 7, state)
    yield directory
    gc.collect()  # reads that orbax gave up after an error complain when they are collected: here, not in another file


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


# -- Saving and restoring ----------------------------------------------------------------------------------------------


def test_what_is_restored_is_what_was_saved(state, saved):
    assert latest_iteration(saved) == 7
    restored = restore(saved, 7, abstract(state))
    assert is_equal(restored, state)
    assert not is_equal(restored, make_state(seed=1))
    draws = jax.vmap(jax.random.normal)
    np.testing.assert_array_equal(draws(restored.key), draws(state.key))


def test_restoring_changes_nothing_on_the_disk(state, saved):
    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    latest_iteration(saved)
    restore(saved, 7, abstract(state))
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before


def test_only_the_newest_is_kept(tmp_path):
    states = {iteration: make_state(seed=iteration) for iteration in (1, 2, 10)}
    for iteration, state in states.items():
        save(tmp_path, iteration, state)
        assert latest_iteration(tmp_path) == iteration
        assert [path.name for path in tmp_path.iterdir()] == [str(iteration)]
    assert is_equal(restore(tmp_path, 10, abstract(states[10])), states[10])


def test_without_a_checkpoint_there_is_no_latest_iteration(tmp_path):
    assert latest_iteration(tmp_path / "missing") is None
    assert not (tmp_path / "missing").exists()
    (tmp_path / "empty").mkdir()
    assert latest_iteration(tmp_path / "empty") is None


def test_what_a_kill_left_behind_is_no_checkpoint(state, copied):
    """Orbax writes into a folder of another name and renames it."""
    shutil.copytree(copied / "7", copied / "8.orbax-checkpoint-tmp")
    next(path for path in (copied / "8.orbax-checkpoint-tmp").rglob("*") if path.is_file()).unlink()
    assert latest_iteration(copied) == 7
    assert is_equal(restore(copied, 7, abstract(state)), state)
    newer = make_state(seed=1)
    save(copied, 8, newer)
    assert latest_iteration(copied) == 8
    assert is_equal(restore(copied, 8, abstract(newer)), newer)


def test_a_folder_that_cannot_be_written_is_an_os_error(state, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        save(tmp_path / "file" / "checkpoint", 1, state)


def test_a_buffer_may_be_left_out_of_the_checkpoint_or_of_the_restored_state(state, saved, tmp_path):
    without = state.replace(buffer=None)
    assert is_equal(restore(saved, 7, abstract(state), with_buffer=False), without)
    save(tmp_path, 7, without)
    assert is_equal(restore(tmp_path, 7, abstract(state)), without)
    size = {
        folder: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in (saved, tmp_path)
    }
    assert size[tmp_path] < size[saved] - state.buffer["obs"].nbytes / 2


SAVE_ELSEWHERE = """
import sys
from pathlib import Path
import jax
import test_checkpoint
from common.checkpoint import save
from common.lanes import make_lanes
save(Path(sys.argv[1]), 7, make_lanes(test_checkpoint.NUM_LANES, 99).place(test_checkpoint.make_state()))
print(jax.local_device_count())
"""


def test_a_checkpoint_made_on_more_devices_is_restored_on_fewer(state, tmp_path):
    """The number of devices is that of the cores: it changes with the machine."""
    repository = Path(__file__).parents[1]
    num_devices = NUM_LANES * jax.local_device_count()
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        "PYTHONPATH": os.pathsep.join(map(str, (repository, repository / "tests"))),
    }
    command = [sys.executable, "-c", SAVE_ELSEWHERE, str(tmp_path)]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert int(printed) == num_devices
    assert is_equal(restore(tmp_path, 7, abstract(state)), state)


# -- Something else than what is expected ------------------------------------------------------------------------------


def with_params(state, **changes):
    return state.replace(params={name: x for name, x in (state.params | changes).items() if x is not None})


OTHERS = {
    "fewer lanes": lambda state: jax.tree.map(lambda x: x[:2], state),
    "more lanes": lambda state: jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), state),
    "smaller": lambda state: with_params(state, w=state.params["w"][:, :39]),
    "larger": lambda state: with_params(state, w=jnp.zeros((NUM_LANES, 41, 20))),
    "transposed": lambda state: with_params(state, w=state.params["w"].swapaxes(1, 2)),
    "rank": lambda state: with_params(state, w=state.params["w"].reshape(NUM_LANES, -1)),
    "leaf missing": lambda state: with_params(state, odd=None),
    "leaf too many": lambda state: with_params(state, more=jnp.zeros(NUM_LANES)),
    "leaf renamed": lambda state: with_params(state, odd=None, even=ODD_FLOATS),
    "larger buffer": lambda state: state.replace(buffer=state.buffer | {"obs": jnp.zeros((NUM_LANES, 701))}),
    "float for int": lambda state: state.replace(count=state.count.astype(jnp.float32)),
    "int for float": lambda state: with_params(state, w=state.params["w"].astype(jnp.int32)),
    "bool for int": lambda state: state.replace(count=state.count > 0),
    "fewer keys": lambda state: state.replace(key=state.key[:2]),
    "numbers for keys": lambda state: state.replace(key=jax.random.key_data(state.key)),
    "keys of another kind": lambda state: state.replace(
        key=jax.vmap(lambda i: jax.random.key(i, impl="rbg"))(jnp.arange(3))
    ),
}


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(change, id=name) for name, change in OTHERS.items()),
    ],
)
def test_a_state_of_another_shape_is_an_error_that_names_the_checkpoint(state, saved, change):
    with pytest.raises(ValueError, match="checkpoint/7"):
        restore(saved, 7, abstract(change(state)))


def test_an_iteration_that_was_not_saved_is_an_error_that_names_it(state, saved):
    with pytest.raises(ValueError, match="checkpoint/8"):
        restore(saved, 8, abstract(state))


# -- Damage ------------------------------------------------------------------------------------------------------------


def garbage(size):
    return np.random.default_rng(0).bytes(size)


def change_middle(content):
    """Overwrites up to 16 bytes, and leaves the rest and the length as they are."""
    middle = len(content) // 2
    noise = bytes(byte ^ 0xFF for byte in content[middle : middle + 16])
    return content[:middle] + noise + content[middle + len(noise) :]


DAMAGES = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "last byte cut": lambda content: content[:-1],
    "overwritten": lambda content: garbage(len(content)),
    "zeroed": lambda content: bytes(len(content)),
    "changed in the middle": change_middle,
    "deleted": lambda content: None,
}


def unnoticed_damage(state, directory, damage):
    """Damages each file in turn. Returns those after which other data than `state` were restored without an error."""
    unnoticed = []
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = path.read_bytes()
        damaged = damage(content)
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        assert latest_iteration(directory) == 7
        try:
            restored = restore(directory, 7, abstract(state))
        except ValueError as error:
            assert str(directory / "7") in str(error)  # noqa: PT017
        else:
            if not is_equal(restored, state):
                unnoticed.append(str(path.relative_to(directory)))
        path.write_bytes(content)
    return unnoticed


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGES,
    ],
)
def test_damage_is_an_error_that_names_the_checkpoint_or_does_no_harm(state, copied, damage):
    assert unnoticed_damage(state, copied, DAMAGES[damage]) == []


# -- The script of a run -----------------------------------------------------------------------------------------------


@pytest.fixture
def two_scripts(tmp_path, monkeypatch):
    """Two versions of a script under the same name, neither of which stays imported."""
    for version in ("old", "new"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "some_script.py").write_text(f"VERSION = {version!r}")
    monkeypatch.setitem(sys.modules, "some_script", None)
    del sys.modules["some_script"]
    return tmp_path / "old" / "some_script.py", tmp_path / "new" / "some_script.py"


def test_a_script_is_imported_by_its_file(two_scripts):
    assert import_script(str(two_scripts[0])).VERSION == "old"
    assert import_script(str(two_scripts[0])) is sys.modules["some_script"]


def test_a_script_of_the_same_name_is_not_mistaken_for_another(two_scripts):
    assert [import_script(str(path)).VERSION for path in two_scripts] == ["old", "new"]


def test_a_script_that_is_gone_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match="gone_script"):
        import_script(str(tmp_path / "gone_script.py"))
