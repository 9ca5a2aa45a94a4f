"""The command line of a script, from sys.argv to the files of the run."""

import atexit
import contextlib
import dataclasses
import gc
import hashlib
import secrets
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax

from common.environment import make_env
from common.presets import find_preset
from runner.devices import hosts
from runner.devices.evaluation import MAX_FRAMES, episode_limit, greedy_policy, play_episode
from runner.devices.imports import import_ahead, import_gymnax, keep_programs
from runner.devices.memory import check_memory
from runner.devices.placement import strip_weak_types
from runner.devices.programs import check_scalars
from runner.devices.stop import StopSignal
from runner.errors import fail
from runner.experiment import Experiment, Part, Result
from runner.files.checkpoint import named_leaves
from runner.files.load import load
from runner.files.lock import locked_folder, out_of_memory_hint, resume_hint
from runner.files.record import Record, read_config, read_options, read_record, versions
from runner.files.store import write_metrics
from runner.options.fields import OF_PROCESS, PRECISIONS, Options, resume_flag
from runner.options.parse import check_unchanged, normalize_argv, parse, peek
from runner.options.sweep import check_distinct, count_settings, make_settings, read_axes
from runner.report.progress import ignore_write_errors
from runner.report.timing import Timing
from runner.report.tracking import check_wandb
from runner.rungs import Run, plan_rungs


@ignore_write_errors()
def run(script: str, config_class: type, make: Callable) -> None:
    """The command line of a script: read sys.argv, train, evaluate, write files.

    Exits with status 2 and one line on stderr if the input is bad, with 128 + signal after Ctrl-C, SIGTERM or SIGHUP,
    and with 1 if memory runs out, another process ended too early or a file of the report cannot be written.
    """
    timing = Timing()
    if not gc.get_freeze_count():  # once, what is imported: else Python looks for garbage there while it traces, 0.3 s
        gc.freeze()
    atexit.register(gc.freeze)  # else Python looks for garbage among all objects before it ends: 0.9 s
    try:
        prepared = prepare(script, config_class, make, timing)
    except (ValueError, OSError) as error:
        refuse(error, script)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    with prepared.lock, prepared.stop:
        try:
            prepared.begin()
            import_ahead("runner.report.results")
            results = prepared.train()
            # A stopped run is reported only if all its trials are at one iteration.
            if not prepared.stop.received or (results and prepared.is_single):
                finish(prepared, results)
        except ValueError as error:
            refuse(error, script)
        except OSError as error:
            fail(f"cannot save: {error}; {resume_hint(prepared.directory)}")
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            fail(f"out of memory; {out_of_memory_hint(prepared.directory, prepared.experiment.options)}", 1)
        finally:
            hosts.shutdown()
    if prepared.stop.received:
        print(f"stopped; continue with {resume_flag(prepared.directory)}", file=sys.stderr)
        raise SystemExit(128 + prepared.stop.received)


def refuse(error: Exception, script: str) -> NoReturn:
    """Exit with the message of a refusal. An error of the script, as a changed loss may cause, keeps its traceback."""
    runner, script_path = Path(__file__).parent, Path(script).absolute()
    places = {runner, runner.with_name("common"), script_path}
    frames = [Path(frame.filename).absolute() for frame in traceback.extract_tb(error.__traceback__)]
    last = [path for path in frames if places & {path, *path.parents}][-1]
    if last == script_path or hasattr(error, "__notes__"):  # JAX notes that it has removed its own frames
        raise error
    fail(str(error))


def prepare(script: str, config_class: type, make: Callable, timing: Timing) -> Run:
    """Read the command line, connect the processes, check all that can be checked and lock the folder.

    Raises:
        ValueError: one line that says what to change.
    """
    config, options, record = parse_command_line(script, config_class)
    check_modes()
    axes = read_axes(options.sweep, options.sweep_samples, config)
    num_trials = count_settings(axes, options.sweep_samples) * options.num_seeds
    initialize(script, config, options, num_trials)
    swept = {name: jax.numpy.float32(axis.numbers[0]) for name, axis in axes.items()}  # arrays, as in training
    abstract_state = check_program(make(dataclasses.replace(config, **swept)), config, options, num_trials)
    if not record:
        check_distinct(axes)
    settings = make_settings(axes, options.sweep_samples, options.seed)
    experiment = Experiment(script, make, config, options, settings)
    for index in range(experiment.num_settings):  # two swept fields may contradict each other
        make(dataclasses.replace(config, **experiment.setting(index)))
    try:
        preset = find_preset(config_class, config.env, options.preset)
    except ValueError:
        if not record:
            raise
        preset = None  # the run has its settings from its record, also where the preset is gone
    rungs = plan_rungs(experiment, record)
    lock = contextlib.ExitStack()

    def choose_folder() -> str:
        check_wandb(options)  # in process 0, which logs for all
        return str(lock.enter_context(locked_folder(experiment.algorithm, config.env, options)))

    return Run(
        experiment=experiment,
        preset=preset,
        abstract_state=abstract_state,
        directory=Path(hosts.broadcast("directory", choose_folder)),
        rungs=rungs,
        wandb_id=record.wandb_id if record else secrets.token_hex(4),
        lock=lock,
        stop=StopSignal(),
        timing=timing,
    )


def initialize(script: str, config: Any, options: Options, num_trials: int) -> None:
    """Set up JAX, and connect the processes of a run, which must train the same program."""
    jax.config.update("jax_default_matmul_precision", PRECISIONS[options.matmul_precision])
    hosts.initialize(options)
    hosts.check_same(describe_program(script, config, options))
    hosts.check_places(options, num_trials, config.num_envs)
    keep_programs()
    import_gymnax()


def check_program(algorithm: Any, config: Any, options: Options, num_trials: int) -> Any:
    """Check what tracing tells: State, memory, metrics. Returns the shapes and dtypes of the State of one trial."""
    abstract_state = jax.eval_shape(
        lambda key: strip_weak_types(algorithm.init(key)), jax.eval_shape(jax.random.key, 0)
    )
    named_leaves(abstract_state)  # refuses a State that a checkpoint cannot hold
    env = make_env(config.env)
    check_memory(env, config, options, num_trials, abstract_state)
    check_scalars(config.env, env, algorithm)
    return abstract_state


def describe_program(script: str, config: Any, options: Options) -> dict[str, Any]:
    """Describe what all processes of a run must share: code, versions, settings and options."""
    root = Path(__file__).parent.parent
    kit = sorted(path for name in ("common", "runner") for path in (root / name).rglob("*.py"))
    texts = {f"the text of {Path(script).name}": [Path(script)], "the text of common/ and runner/": kit}
    digests = {name: hashlib.sha256(b"".join(map(Path.read_bytes, paths))).hexdigest() for name, paths in texts.items()}
    shared = {name: x for name, x in dataclasses.asdict(options).items() if name not in OF_PROCESS}
    return {"script": Path(script).name} | dataclasses.asdict(config) | shared | digests | versions()


def check_modes() -> None:
    """Raise ValueError in modes of JAX that a run cannot have."""
    hint = "call step from Python instead, see Looking inside in docs/python.md"
    if jax.config.jax_disable_jit:
        raise ValueError(f"a run consists of compiled programs, which JAX_DISABLE_JIT forbids; {hint}")
    if jax.config.jax_debug_nans:
        reason = "episode_return is NaN where no episode ended, and JAX_DEBUG_NANS would stop there"
        raise ValueError(f"{reason}; {hint}")


def parse_command_line(script: str, config_class: type) -> tuple[Any, Options, Record | None]:
    """Read sys.argv. The defaults are the chosen preset of the environment, or with --resume the settings of that run.

    Returns:
        the Config, the options, and with --resume the record of the run.

    Raises:
        ValueError: an option with a value that it cannot have, no run to resume, one that was started with other
            settings, no preset of this name, or an error in the file of presets.
    """
    words = normalize_argv(config_class)
    env, name, resume = peek(words, config_class().env)
    if resume is None:
        preset = find_preset(config_class, env, name)
        source = f"{env}{f', preset {name}' if name else ''}" if preset else f"Config; {env} has no preset"
        return *parse(words, script, preset or config_class(env=env), Options(), source), None
    if not resume:
        raise ValueError("resume must be the folder of a run, not empty")
    record = read_record(Path(resume))
    if record.algorithm != Path(script).stem:
        raise ValueError(f"{resume} is a run of {record.algorithm}.py, not of {Path(script).name}")
    config = read_config(record, config_class, to_resume=True)
    saved = config, read_options(record)
    given = parse(words, script, *saved, resume)
    check_unchanged(resume, saved, given)
    return *given, record


def finish(run: Run, results: dict[Part, Result]) -> None:
    """Join the results of all parts and report, in process 0 for all. `results`: of the parts of this process."""
    experiment, directory = run.experiment, run.directory
    with run.timing.measure("report"):
        from runner.report.results import report  # a second of imports, which training does not wait for

    absent = hosts.barrier("end")
    hosts.shutdown()  # before the report, in which process 0 is alone
    if absent and not run.stop.received:
        fail(hosts.absence_hint(absent, directory), 1)
    if absent or jax.process_index() > 0:
        return
    result = run.join(results)
    if not run.is_single:
        env_steps = experiment.env_steps(experiment.config.num_iterations)
        trials = experiment.trials_of(Part(0, experiment.num_trials)) | {"is_healthy": result.scores["is_healthy"]}
        if experiment.is_halved:
            trials |= {"num_iterations": result.num_iterations}
        write_metrics(directory, env_steps, trials, result.metrics, result.evaluations)
        run.tracker.log_result(env_steps, result)
    is_stopped = bool(run.stop.received)
    is_written = report(experiment, run.preset, directory, result, run.timing, is_stopped)
    if not is_stopped:
        log_episode(run, result)
    run.tracker.finish(result)
    if not (is_written or is_stopped):
        raise SystemExit(1)


def log_episode(run: Run, result: Result) -> None:
    """Log a greedy episode of the first seed to wandb, if runs are evaluated and the environment can be drawn."""
    experiment, env = run.experiment, run.experiment.env
    if not (run.tracker.runs and experiment.options.eval_episodes and result.scores["is_healthy"][0]):
        return
    try:
        ending, render = env.suite.renderer()
    except ValueError:
        return
    try:
        _, algorithm, state = load(run.directory, 0, 0, experiment.script)
        limit = episode_limit(env, MAX_FRAMES)
        states, returns = play_episode(env, *greedy_policy(algorithm, state, 1), jax.random.key(0), limit)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"episode{ending}")
            render(states, returns, str(path))
            run.tracker.log_episode(int(experiment.env_steps(experiment.config.num_iterations)[-1]), path)
    except (ValueError, OSError) as error:  # the run itself is whole
        print(f"warning: wandb has no episode: {error}", file=sys.stderr)
