"""The command line, the same for every script: the fields of its Config and the options of a run."""

import argparse
import dataclasses
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from common.checkpoint import read_config, read_record


@dataclass(frozen=True)
class Options:
    """What a run does besides training."""

    num_seeds: int = 1  # seeds trained side by side; number i has the key jax.random.key(seed + i)
    seed: int = 0  # the first of them
    # float setting to vary, in one compilation: learning-rate=1e-4,3e-4 or =log:1e-5:1e-2:16 or =lin:LOW:HIGH:COUNT
    sweep: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    sweep_samples: int = 0  # so many random settings from the lists and ranges of --sweep; 0: the whole grid
    out: str = "runs"  # results go to OUT/<script>/<env>/NAME
    name: str = ""  # folder of this run; empty: date and time
    num_segments: int = 0  # calls of the compiled program, the host talks between them; 0: calls of about a second
    eval_episodes: int = 32  # greedy episodes per seed at the end; 0: no evaluation
    checkpoint_every: float = 60.0  # seconds between checkpoints, 0: after every segment; one is always left at the end
    checkpoint_buffer: bool = True  # without its replay buffer a checkpoint is small, but a resumed run is another run
    resume: str = ""  # folder of a run to continue, or to lengthen with a larger --total-timesteps
    devices: int = 0  # how many devices of this host to use, 0: all; on a CPU a device is a core
    lanes_per_batch: str = "auto"  # lanes (seeds x settings) trained at once, the rest after them; auto: all that fit
    coordinator: str = ""  # of several processes, HOST:PORT of process 0; auto: Slurm, Open MPI, Kubernetes, TPU tell
    num_processes: int = 1  # with --coordinator HOST:PORT, how many there are
    process_id: int = 0  # with --coordinator HOST:PORT, which one this is
    wandb: Literal["disabled", "offline", "online"] = "disabled"  # offline needs no account and no network
    wandb_project: str = "single-file-jax-rl"  # project that the run is logged to
    wandb_per_seed: bool = False  # one wandb run per seed in one group, instead of one run with curves over seeds

    def __post_init__(self):
        if self.num_seeds < 1:
            raise ValueError(f"num_seeds must be at least 1, not {self.num_seeds}")
        if not 0 <= self.seed <= 2**32 - self.num_seeds:
            raise ValueError(f"seed must be between 0 and 2**32 - num_seeds, not {self.seed}")
        for name in ("num_segments", "eval_episodes", "checkpoint_every", "devices"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.lanes_per_batch != "auto" and not (self.lanes_per_batch.isdecimal() and int(self.lanes_per_batch) >= 1):
            raise ValueError(f"lanes_per_batch must be auto or at least 1, not {self.lanes_per_batch}")
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(
                f"process_id must be between 0 and num_processes - 1, not {self.process_id} of {self.num_processes}"
            )
        if self.num_processes > 1 and not self.coordinator:
            raise ValueError("num_processes > 1 needs --coordinator HOST:PORT, the same for all of them")


FIXED = {
    "num_seeds",
    "seed",
    "sweep",
    "sweep_samples",
    "lanes_per_batch",
}  # options that may not change when a run is resumed


def preset(config_class: type, presets: dict[str, Any], env: str) -> Any:
    """The Config of an environment where no flag says otherwise."""
    return presets.get(env) or dataclasses.replace(config_class(), env=env)


def rerun_command(script: str, config: Any, default: Any, settings: dict[str, float], seed: int, num_seeds: int) -> str:
    """The command that trains `config` with one setting of a sweep; `default` is the preset of the environment."""
    flags = ["--env", config.env, "--num-seeds", num_seeds, "--seed", seed]
    for name, value in (dataclasses.asdict(config) | settings).items():
        if value != getattr(default, name):
            flag = name.replace("_", "-")
            values = {bool: [], tuple: value}.get(type(value), [value])
            flags += [f"--no-{flag}" if value is False else f"--{flag}", *values]
    return shlex.join(["python", Path(script).name, *map(str, flags)])


def parse(script: str, config_class: type, presets: dict[str, Any]) -> tuple[Any, Options]:
    """Read sys.argv. The defaults are the preset of the chosen environment, or with --resume the settings of that run.

    Raises:
        ValueError: no run to resume, or one that was started with other settings.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env", default=config_class().env)
    first.add_argument("--resume", default="")
    known, _ = first.parse_known_args()
    if known.resume:
        record = read_record(Path(known.resume))
        if record["algorithm"] != Path(script).stem:
            raise ValueError(f"{known.resume} is a run of {record['algorithm']}.py, not of {Path(script).stem}.py")
        config = read_config(config_class, record)
        options = Options(**{name: record[name] for name in FIXED} | {"sweep": tuple(record["sweep"])})
    else:
        config = preset(config_class, presets, known.env)
        options = Options()

    name = Path(script).stem
    options_type = Annotated[Options, tyro.conf.arg(help="What a run does besides training.")]
    config_type = Annotated[config_class, tyro.conf.arg(help=f"{name.upper()} itself.")]
    arguments = dataclasses.make_dataclass("Arguments", [("run", options_type), (name, config_type)])
    given = tyro.cli(
        tyro.conf.OmitArgPrefixes[arguments],
        prog=f"python {Path(script).name}",
        description=f"Train {name.upper()} on a gymnax environment. The defaults are those of {config.env}.",
        default=arguments(options, config),
    )
    given_config, given_options = getattr(given, name), given.run
    if known.resume:
        _check_unchanged(known.resume, (config, options), (given_config, given_options))
    return given_config, given_options


def _check_unchanged(directory: str, saved: tuple, given: tuple) -> None:
    for old, new in zip(saved, given, strict=True):
        for field in dataclasses.fields(old):
            before, after = getattr(old, field.name), getattr(new, field.name)
            may_change = isinstance(old, Options) and field.name not in FIXED
            if before == after or may_change or (field.name == "total_timesteps" and after > before):
                continue
            hint = "it may only grow" if field.name == "total_timesteps" else "leave the flag out to resume"
            raise ValueError(f"{directory} was started with {field.name} = {before}, not {after}; {hint}")


def fail(message: str, status: int = 2) -> None:
    """Say what is wrong in one line and exit."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(status)
