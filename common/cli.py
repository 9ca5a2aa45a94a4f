"""The command line, the same for every script: the fields of its Config and the options of a run."""

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from common.checkpoint import read_config, read_record


@dataclass(frozen=True)
class Options:
    """What a run does besides training."""

    num_seeds: int = 1  # lanes trained side by side; lane i has the key jax.random.key(seed + i)
    seed: int = 0  # of the first lane
    out: str = "runs"  # results go to OUT/<script>/<env>/NAME
    name: str = ""  # folder of this run; empty: date and time
    num_segments: int = 0  # calls of the compiled program, the host talks between them; 0: calls of about a second
    eval_episodes: int = 32  # greedy episodes per seed at the end; 0: no evaluation
    checkpoint_every: float = 60.0  # seconds between checkpoints, 0: after every segment; one is always left at the end
    checkpoint_buffer: bool = True  # without its replay buffer a checkpoint is small, but a resumed run is another run
    resume: str = ""  # folder of a run to continue, or to lengthen with a larger --total-timesteps
    wandb: Literal["disabled", "offline", "online"] = "disabled"  # offline needs no account and no network
    wandb_project: str = "single-file-jax-rl"  # project that the run is logged to
    wandb_per_seed: bool = False  # one wandb run per seed in one group, instead of one run with curves over seeds

    def __post_init__(self):
        if self.num_seeds < 1:
            raise ValueError(f"num_seeds must be at least 1, not {self.num_seeds}")
        if not 0 <= self.seed <= 2**32 - self.num_seeds:
            raise ValueError(f"seed must be between 0 and 2**32 - num_seeds, not {self.seed}")
        for name in ("num_segments", "eval_episodes", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")


FIXED = {"num_seeds", "seed"}  # options that may not change when a run is resumed


def parse(script: str, config_class: type, presets: dict[str, dict[str, Any]]) -> tuple[Any, Options]:
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
        options = Options(num_seeds=record["num_seeds"], seed=record["seed"])
    else:
        config = dataclasses.replace(config_class(), env=known.env, **presets.get(known.env, {}))
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


def fail(message: str) -> None:
    """Say what is wrong in one line and exit with status 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
