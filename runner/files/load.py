"""Load a trained policy: one trial of a finished or interrupted run."""

import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runner.experiment import Experiment
from runner.files.checkpoint import restore_policy
from runner.files.record import Record, read_experiment, read_record
from runner.files.store import CHECKPOINT, SUMMARY, part_folder, read_json, rung_folder

ROOT = Path(__file__).resolve().parent.parent.parent  # the folder of the scripts


def load(
    run_dir: str | Path,
    seed_index: int | None = 0,
    setting_index: int | None = None,
    script: str | Path | None = None,
) -> tuple[Any, Any, Any]:
    """Load one seed of a finished or interrupted run, or all of them.

    Nothing in the run's folder is run. Its checkpoint is read with the script that was imported from the recorded file,
    or else with this checkout's script of the same name.

    Args:
        run_dir: the folder that a run wrote.
        seed_index: which seed, counted from 0; None: all, and each array of the State has a first axis of seeds.
        setting_index: which setting of a sweep, counted from 0 in the order of config.json; None: the best one by the
            ranking in summary.json, and the first one where there is no ranking yet. A note says which.
        script: the file of another script, which is run; None: as above.

    Returns:
        config, algorithm (with `act` and `value`) and that trial's State, without a replay buffer. Of a run of another
        version of the script, the State has at least what `act` and `value` read; a note says what is None.

    Raises:
        ValueError: no such run, seed, setting or script, a damaged checkpoint, or one of a policy that the script
            cannot have.
    """
    run_dir = Path(run_dir)
    record = read_record(run_dir)
    if script is None:
        module = check_script(_find_script(record))
    else:
        module = check_script(import_script(script))
    try:
        return _restore(run_dir, record, module, seed_index, setting_index)
    except ValueError as error:
        if script is None or Path(script).stem == record.algorithm:
            raise
        raise ValueError(f"{run_dir} is a run of {record.algorithm}.py, read with {script}: {error}") from error


def _restore(
    run_dir: Path, record: Record, module: Any, seed_index: int | None, setting_index: int | None
) -> tuple[Any, Any, Any]:
    """`load` with the record and the module of the script."""
    experiment = read_experiment(record, module)
    if setting_index is None:
        setting_index = _choose_setting(run_dir, experiment)
    experiment.trial(seed_index or 0, setting_index)  # refuses those that the run does not have
    config = dataclasses.replace(experiment.config, **experiment.setting(setting_index))
    algorithm = module.make(config)
    abstract_state = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
    states = []
    for seed in range(experiment.options.num_seeds) if seed_index is None else [seed_index]:
        places = trials_of_checkpoints(run_dir, record, experiment, experiment.trial(seed, setting_index))
        path, row = next((place for place in places if place[0].exists()), (None, 0))
        if path is None:
            raise ValueError(f"{run_dir} has no checkpoint of this seed")
        states.append(jax.device_put(restore_policy(path, abstract_state, row)))
    state = jax.tree.map(lambda *x: jnp.stack(x), *states) if seed_index is None else states[0]
    return config, algorithm, state


def _choose_setting(run_dir: Path, experiment: Experiment) -> int:
    """The best setting of a sweep by summary.json, the first one without a ranking; a note says which."""
    if not experiment.settings:
        return 0
    chosen, why = 0, f"the first one, as there is no ranking in {run_dir / SUMMARY}"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # not written yet, or damaged
        ranking = read_json(run_dir / SUMMARY)["ranking"]
        if sorted(ranking) == list(range(experiment.num_settings)):
            chosen, why = int(ranking[0]), f"the best one in {run_dir / SUMMARY}"
    name = f"setting {chosen} ({experiment.name_setting(chosen)})"
    print(f"note: {name}, {why}; setting_index (--setting-index) chooses another", file=sys.stderr)
    return chosen


def trials_of_checkpoints(
    run_dir: Path, record: Record, experiment: Experiment, trial: int
) -> Iterator[tuple[Path, int]]:
    """The checkpoints that a trial may have, the last rung's first, and its row there."""
    folders = [(run_dir, record.parts, np.arange(experiment.num_trials))]
    for index, rung in enumerate(record.rungs):
        folders.append((rung_folder(run_dir, index), rung.parts, experiment.trials_at(rung.settings)))
    for folder, parts, trials in reversed(folders):
        for part in parts:
            for row in np.flatnonzero(trials[part.start : part.stop] == trial):
                yield part_folder(folder, parts, part) / CHECKPOINT, int(row)


# -- Scripts -----------------------------------------------------------------------------------------------------------


def _find_script(record: Record) -> Any:
    """The module of the script of a run: the one that was imported from the recorded file, or this checkout's.

    The recorded file itself is not run: the run may come from another user. Raises ValueError if there is neither.
    """
    recorded = Path(record.script)
    if recorded.suffix != ".py":
        raise ValueError(f"{record.path}: the script {recorded} is no .py file")
    for name in (recorded.stem, "__main__"):
        if _is_from(sys.modules.get(name), recorded):
            return sys.modules[name]
    own = next((x for x in (ROOT / recorded.name, ROOT / "variants" / recorded.name) if os.path.isfile(x)), None)
    if own is None:
        raise ValueError(
            f"{record.path}: the run is one of {recorded}, which is no script of {ROOT}; to run that file, name it: "
            "--script, load(script=)"
        )
    if os.path.isfile(recorded) and not os.path.samefile(recorded, own):
        print(f"note: {record.path.parent} is read with {own}; --script would run {recorded}", file=sys.stderr)
    return import_script(own)


def import_script(path: str | Path) -> Any:
    """Import a script by its file, unless it is imported already, as a module of its own name. Where another module has
    this name, or one of Python itself, which must stay what it is, the module is named by its path.

    Raises:
        ValueError: there is no such .py file.
    """
    if not (os.path.isfile(path) and Path(path).suffix == ".py"):
        raise ValueError(f"the script {path} does not exist or is no .py file")
    path = Path(path).resolve()
    known = sys.modules.get(path.stem)
    is_taken = path.stem in sys.stdlib_module_names or (known is not None and not _is_from(known, path))
    name = str(path) if is_taken else path.stem
    if sys.modules.get(name) is not None:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_script(module: Any) -> Any:
    """The module itself. Raises ValueError unless it is a script that trains."""
    if missing := [name for name in ("Config", "make") if not hasattr(module, name)]:
        raise ValueError(f"{module.__file__} is no script that trains: it has no {' and no '.join(missing)}")
    return module


def _is_from(module: Any, path: Path) -> bool:
    """Whether a module was imported from a file."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.realpath(file) == os.path.realpath(path)
