"""A run's folder of somebody else: opening it runs nothing of it, writes nothing outside of it, and is an error of one
line where it is not what a run writes."""

import json
import os
import shutil
import sys
import zlib
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
import safetensors.numpy
from helpers import abstract_state, call, capture, path_of, small_config
from runs import assert_refused
from safetensors import safe_open

import ppo
from common.random import is_key
from runner import load, render
from runner.compare import __main__ as compare
from runner.experiment import EVAL_METRICS, Experiment, Part, Rung
from runner.export import __main__ as export
from runner.export.policy import Model
from runner.files import checkpoint, record, store
from runner.options.fields import Options

NUM_SEEDS, ITERATION = 2, 3
EVIL = "import pathlib\npathlib.Path({!r}).touch()\nfrom ppo import Config, make\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a run that was stopped after ITERATION, without the seconds of a training: its arrays are zeros."""
    return write_run(tmp_path_factory.mktemp("runs") / "run")


def write_run(directory, settings=None, **options):
    config, options = small_config("ppo"), Options(num_seeds=NUM_SEEDS, **options)
    experiment = Experiment(path_of("ppo"), ppo.make, config, options, settings or {})
    directory.mkdir()
    num_trials = experiment.num_trials
    rung = Rung(tuple(range(experiment.num_settings)), config.num_iterations, [Part(0, num_trials)])
    record.write_record(directory, experiment, [rung], "abc")

    def zeros(x):
        data = np.zeros((*x.shape, 2), np.uint32) if is_key(x) else np.zeros(x.shape, x.dtype)
        return jax.random.wrap_key_data(data) if is_key(x) else data

    state = jax.tree.map(zeros, abstract_state(ppo.make, config, num_trials))
    checkpoint.save(directory / store.CHECKPOINT, ITERATION, state)
    algorithm = ppo.make(config)
    one = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
    _, metrics = jax.eval_shape(algorithm.step, one, jax.ShapeDtypeStruct((), np.int32))
    metrics = {name: np.zeros((num_trials, ITERATION), x.dtype) for name, x in metrics.items()}
    evaluations = {"eval_env_steps": np.array([0, 32])} | {name: np.zeros((num_trials, 2)) for name in EVAL_METRICS}
    trials = experiment.trials_of(Part(0, num_trials))
    store.write_metrics(directory, experiment.env_steps(ITERATION), trials, metrics, evaluations)
    return directory


@pytest.fixture
def run(written, folder):
    """A copy of it, in an empty folder."""
    return Path(shutil.copytree(written, folder / "run"))


def change(run, **values):
    """Other values in config.json, each named by its path: `config__gamma`."""
    content = json.loads((run / "config.json").read_text())
    for key, value in values.items():
        outer, _, name = key.rpartition("__")
        (content[outer] if outer else content)[name] = value
    (run / "config.json").write_text(json.dumps(content))


def draw(run, *words):
    return capture(render.main, "render", str(run), "--max-steps", "1", *words)


def resume(run):
    return call("ppo", "--resume", str(run))


def open_in_all_ways(run):
    """The results of all commands that open a folder."""
    with mock.patch.object(export, "make_model", return_value=Model(b"", {}, False)):  # seconds, of arrays alone
        exported = capture(export.main, "export", str(run))
    return [
        draw(run),
        exported,
        capture(compare.main, "compare", str(run)),
        resume(run),
    ]


def assert_clean(results):
    """Assert that the output steers no terminal, and that an error is one line."""
    for result in results:
        text = result.stdout + result.stderr
        assert all(x.isprintable() for x in text.replace("\n", "")), text
        assert "Traceback" not in text
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert (result.status, len(errors)) in ((0, 0), (2, 1)), result


# -- Nothing of it is run ----------------------------------------------------------------------------------------------


def test_the_folder_as_it_was_written_can_be_opened(run):
    assert load(run)[0] == small_config("ppo")
    assert capture(compare.main, "compare", str(run)).status == 0


@pytest.mark.parametrize("name", ["json.py", "mine.py", "ppo.py"])
def test_a_script_that_it_names_is_not_run(run, name):
    script, marker, modules = run / name, run.parent / "marker", dict(sys.modules)
    script.write_text(EVIL.format(str(marker)))
    change(run, script=str(script))
    if name == "ppo.py":  # there is one in this checkout
        assert load(run)[1].act.__module__ == ppo.__name__
    else:
        with pytest.raises(ValueError, match=rf"{script}, which is no script of .*--script, load\(script=\)"):
            load(run)
        assert_refused(draw(run), script, "--script")
    assert not marker.exists()
    assert sys.modules == modules | sys.modules
    load(run, script=script)
    assert marker.exists()
    assert json is sys.modules["json"]


def test_a_script_that_this_process_has_imported_reads_its_runs(run, monkeypatch):
    script = run.parent / "own_ppo.py"
    shutil.copy(path_of("ppo"), script)
    change(run, script=str(script))
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.delitem(sys.modules, "own_ppo", raising=False)
    import own_ppo

    assert isinstance(load(run)[0], own_ppo.Config)


@pytest.mark.parametrize(
    "name", ["", "ppo", "ppo.txt", "/", "..", "\x1b[2J.py", "a/\0.py", "x" * 300 + ".py", "\ud800.py"]
)
def test_a_script_of_an_odd_name_is_refused(run, name):
    change(run, script=name)
    assert_refused(draw(run), "script")
    assert_clean([draw(run)])


# -- Nothing outside of it is written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_write_follows_no_link(tmp_path, link):
    victim, path = tmp_path / "victim", tmp_path / "config.json"
    victim.write_text("mine")
    for name in (".new-config.json", "config.json"):
        link(victim, tmp_path / name)
    store.write_json(path, {"a": 1})
    assert victim.read_text() == "mine"
    assert (json.loads(path.read_text()), path.is_symlink()) == ({"a": 1}, False)
    assert {x.name for x in tmp_path.iterdir()} == {"victim", "config.json"}


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused(run, link):
    (run.parent / "victim").write_text("mine")
    link(run.parent / "victim", run / "training.lock")
    assert_refused(resume(run), run / "training.lock", "remove it")
    assert (run.parent / "victim").read_text() == "mine"


@pytest.mark.parametrize("name", ["parts", "rungs", "wandb", "rungs/1"])
def test_a_folder_that_is_a_link_out_of_the_run_is_refused(run, name):
    (run.parent / "elsewhere").mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(run.parent / "elsewhere")
    assert_refused(resume(run), run / name, "leads out of the run")
    assert list((run.parent / "elsewhere").iterdir()) == []


def test_a_link_that_stays_in_the_run_is_no_reason(run):
    (run / "wandb").mkdir()
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (run / "wandb" / "run-1").mkdir()
    (run / store.METRICS).unlink()
    assert_refused(resume(run), store.METRICS)


# -- Nothing steers the terminal ---------------------------------------------------------------------------------------

ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e\r\nerror: more"


@pytest.mark.parametrize(
    "changes",
    [
        {"config__env": ESCAPE},
        {"config__env": f"CartPole-v1:{ESCAPE}=3"},
        {f"config__{ESCAPE}": 3},
        {f"options__{ESCAPE}": 3},
        {"options__name": ESCAPE},
        {"script": f"/x/{ESCAPE}.py"},
        {"config__activation": ESCAPE},
    ],
    ids=lambda changes: next(iter(changes)).replace(ESCAPE, "escape"),
)
def test_escape_sequences_of_the_record_are_not_printed(run, changes):
    change(run, **changes)
    (run / store.METRICS).unlink()  # so that nothing is trained
    assert_clean(open_in_all_ways(run))


def test_escape_sequences_of_an_environment_are_not_printed_in_a_table(run):
    change(run, config__env=ESCAPE)
    result = capture(compare.main, "compare", str(run))
    assert result.status == 0
    assert_clean([result])


def test_escape_sequences_of_a_checkpoint_are_not_in_the_error_of_load(run):
    header = json.dumps({"a": {"dtype": ESCAPE, "shape": [1], "data_offsets": [0, 1]}}).encode()
    (run / store.CHECKPOINT).write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged") as error:
        load(run)
    assert str(error.value).isprintable()


def test_escape_sequences_of_other_files_are_not_printed(run):
    arrays = store.read_arrays(run / store.METRICS)
    np.savez(run / store.METRICS, **{ESCAPE.replace("\r\n", ""): np.zeros(2), **arrays})
    assert_refused(capture(compare.main, "compare", str(run)), store.METRICS)
    (run / "training.lock").write_text(ESCAPE)
    import fcntl

    with (run / "training.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = resume(run)
    assert_refused(result, "is being trained by")
    assert_clean([result])


def test_a_folder_with_a_name_that_cannot_be_printed_is_refused(run):
    assert_clean([capture(compare.main, "compare", str(run.rename(run.with_name("run\x1b[2J"))))])


# -- Files of another kind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [store.RECORD, store.METRICS, store.CHECKPOINT])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused(run, name, kind):
    path = run / name
    path.unlink()
    {"pipe": os.mkfifo, "device": lambda x: x.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    result = draw(run) if name == store.CHECKPOINT else capture(compare.main, "compare", str(run))
    assert_refused(result, name)
    assert_refused(resume(run), name)


def rewrite(path, change):
    """A checkpoint with other metadata, whose checksum is right, and with other arrays."""
    with safe_open(path, framework="numpy") as file:
        content, arrays = json.loads(file.metadata()["content"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = change(content, arrays) or content
    text = content if isinstance(content, str) else json.dumps(content)
    safetensors.numpy.save_file(arrays, path, {"content": text, "checksum": str(zlib.crc32(text.encode()))})


CONTENTS = {
    "no dict": lambda content, _: [content],
    "nested": lambda *_: "[" * 100_000 + "]" * 100_000,
    "no number": lambda *_: '{"iteration": NaN, "keys": {}, "checksums": {}}',
    "no trials": lambda _, arrays: arrays.update(key=np.zeros((), np.uint32)),
    "more arrays": lambda _, arrays: arrays.update(more=np.zeros((2, 3), np.float32)),
    "an array of trials less": lambda _, arrays: arrays.update(obs=arrays["obs"][:1]),
}
for name, value in {
    "iteration": (None, "3", -1, 0, True, 3.0, 2**70, [3]),
    "keys": (None, 3, [], "key", {"key": 3}, {"key": None}, {}),
    "checksums": (
        None,
        3,
        [],
        {},
        {"state": 3},
        {"state": [0]},
        {"state": None},
        {"state": {"0": 1}},
        {"buffer": [1, 2]},
    ),
}.items():
    for x in value:
        CONTENTS[f"{name} {x}"] = lambda content, _, name=name, x=x: content | {name: x}
    CONTENTS[f"no {name}"] = lambda content, _, name=name: content.pop(name) and None


@pytest.mark.parametrize("change", CONTENTS.values(), ids=CONTENTS)
def test_metadata_of_a_checkpoint_that_no_run_writes_are_refused(run, change):
    path, state = run / store.CHECKPOINT, abstract_state(ppo.make, small_config("ppo"), NUM_SEEDS)
    rewrite(path, change)
    with pytest.raises(ValueError, match=f"the checkpoint {path} is damaged or of another run: "):
        checkpoint.restore(path, state)


@pytest.mark.parametrize("iteration", [None, 0, 10**9])
def test_a_run_is_not_trained_from_its_beginning_instead(run, iteration):
    rewrite(run / store.CHECKPOINT, lambda content, _: content | {"iteration": iteration})
    before = (run / store.METRICS).read_bytes()
    assert_refused(resume(run), store.CHECKPOINT, "iteration")
    assert (run / store.METRICS).read_bytes() == before


def test_a_large_array_that_is_not_of_the_state_is_not_read(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_UNREAD", 5)
    path = run / store.CHECKPOINT
    rewrite(path, lambda _, arrays: arrays.update(more=np.zeros((NUM_SEEDS, 6), np.float32)))
    assert_refused(draw(run), path, "largest arrays")


@pytest.mark.parametrize("kind", ["longer than its file", "compressed", "sparse"])
def test_an_array_that_would_fill_the_memory_is_not_read(run, kind, monkeypatch):
    path = run / store.METRICS
    arrays = store.read_arrays(path) | {"episode_return": np.zeros((NUM_SEEDS, 2**20))}
    (np.savez_compressed if kind == "compressed" else np.savez)(path, **arrays)
    if kind == "sparse":
        monkeypatch.setattr(store, "MAX_SPARSE", 2**20)
        dig_holes(path)
    if kind == "longer than its file":
        name = f"({NUM_SEEDS}, {2**20})".encode()
        path.write_bytes(path.read_bytes().replace(name, name.replace(b"2, 1", b"9, 9")))
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)
    assert_refused(capture(compare.main, "compare", str(run)), path, "damaged")
    assert_refused(resume(run), path)


def dig_holes(path):
    """Blocks of zeros of a file take no disk."""
    content, size = path.read_bytes(), 4096
    path.unlink()
    with path.open("wb") as file:
        for start in range(0, len(content), size):
            if any(block := content[start : start + size]):
                file.seek(start)
                file.write(block)
        file.truncate(len(content))


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "O", "i4,f4"])
def test_metrics_that_are_no_numbers_are_refused(run, dtype):
    np.savez(run / store.METRICS, **store.read_arrays(run / store.METRICS) | {"seed": np.zeros(2, dtype)})
    assert_refused(capture(compare.main, "compare", str(run)), store.METRICS)


STRANGE = {
    "no axis": {"seed": np.uint32(0)},
    "three axes": {"more": np.zeros((2, 1, 1))},
    "more settings than seeds": {"sweep_gamma": np.zeros(3)},
    "fewer settings than seeds": {"sweep_gamma": np.zeros(1)},
    "settings of two axes": {"sweep_gamma": np.zeros((2, 1))},
    "more iterations": {"num_iterations": np.array([3, 4])},
    "no iteration": {"num_iterations": np.array([3, 0])},
    "seeds of two axes": {"seed": np.zeros((2, 1), np.uint32)},
    "more evaluations": {"eval_env_steps": np.arange(3)},
    "other evaluations": {"eval_episode_return": np.zeros((2, 1))},
}


@pytest.mark.parametrize("arrays", STRANGE.values(), ids=STRANGE)
def test_arrays_that_do_not_fit_together_are_refused(run, arrays):
    np.savez(run / store.METRICS, **store.read_arrays(run / store.METRICS) | arrays)
    assert_refused(capture(compare.main, "compare", str(run)), store.METRICS)
    if arrays.keys() != {"num_iterations"}:  # which a run that is not halved has not
        assert_refused(resume(run), store.METRICS)


@pytest.mark.parametrize("scores", [{}, {"is_healthy": np.ones(3)}, {"is_healthy": np.ones(2), "x": np.ones((2, 2))}])
def test_scores_of_other_trials_are_refused(tmp_path, scores):
    store.write_arrays(tmp_path / store.EVALUATION, scores)
    with pytest.raises(ValueError, match=store.EVALUATION):
        store.read_scores(tmp_path, NUM_SEEDS)


@pytest.mark.parametrize("options", [{"num_seeds": "x"}, {"eval_sampled": 3}, {"eval_episodes": None}], ids=str)
def test_options_of_another_type_are_refused_by_a_comparison_too(run, options):
    change(run, **{f"options__{name}": x for name, x in options.items()})
    assert_refused(capture(compare.main, "compare", str(run)), *options)


@pytest.mark.parametrize(
    "options",
    [
        {"sweep": ["learning_rate=log:1e-5:1:1e12"]},
        {"sweep": ["learning_rate=lin:0.1:1:1e5", "gamma=lin:0.1:1:1e5", "vf_coef=lin:0.1:1:1e5"]},
        {"sweep": ["learning_rate=log:1e-5:1"], "sweep_samples": 2**31 - 1},
        {"num_seeds": 2**31 - 1},
    ],
    ids=str,
)
def test_a_sweep_that_would_fill_the_memory_is_refused(run, options):
    num_trials = options.get("num_seeds", 2) * 10**12
    change(run, parts=[[0, num_trials]], **{f"options__{name}": x for name, x in options.items()})
    assert_refused(draw(run), "trials")
    assert_refused(resume(run))


# -- Another version of the script -------------------------------------------------------------------------------------


def test_a_metric_that_a_run_lacks_is_named_before_compiling(run):
    arrays = store.read_arrays(run / store.METRICS)
    np.savez(run / store.METRICS, **{"loss" if name == "value_loss" else name: x for name, x in arrays.items()})
    result = resume(run)
    assert_refused(result, run / store.METRICS, "value_loss")
    assert "compiling" not in result.stdout


# -- The setting of a sweep --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("summary", "chosen"),
    [
        ({"ranking": [2, 0, 1]}, 2),
        *((x, 0) for x in (None, {}, [], "x", {"ranking": [2]}, {"ranking": [0, 1, 9]}, {"ranking": ["2", 0, 1]})),
        ({"ranking": 3}, 0),
    ],
    ids=str,
)
def test_the_best_setting_is_loaded_where_there_is_a_ranking(folder, capsys, summary, chosen):
    rates = np.float32([0.1, 0.2, 0.3])
    run = write_run(folder / "run", {"learning_rate": rates}, sweep=("learning_rate=0.1,0.2,0.3",))
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary) if summary != "x" else "{")
    assert load(run)[0].learning_rate == pytest.approx(float(rates[chosen]))
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: setting {chosen} (learning_rate={(0.1, 0.2, 0.3)[chosen]})")
    assert ("the best one" in note) == (chosen == 2)
    assert load(run, setting_index=1)[0].learning_rate == pytest.approx(0.2)
    assert capsys.readouterr().err == ""
