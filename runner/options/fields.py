"""Command-line options of a run, besides the Config of the algorithm."""

import shlex
import typing
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Literal

import tyro

from common.config import NonNegative, NonNegativeInt, check_value


@dataclass(frozen=True)
class Options:
    """Options of the run, the same for every algorithm."""

    num_seeds: int = 1  # seeds trained in parallel; seed i has the key jax.random.key(SEED + i)
    seed: NonNegativeInt = 0  # first seed
    # name of a preset in presets/<script>.toml, whose values are the defaults, such as small, for a CPU; empty: the one
    # without a name
    preset: str = ""
    # float setting to vary, in one compilation: learning-rate=1e-4,3e-4 or =log:1e-5:1e-2:16 or =lin:LOW:HIGH:COUNT
    sweep: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    sweep_samples: NonNegativeInt = 0  # random settings drawn from the ranges of --sweep; 0: train the whole grid
    # train all settings of a sweep to 1/N**2 of the run, the best 1/N of them to 1/N, and the best 1/N of those to the
    # end, with more or fewer such rungs for more or fewer settings; off: train all to the end
    sweep_halve: str = "off"
    # statistic over seeds that ranks a sweep at the end; worst-quarter: mean of the worst quarter of the seeds
    rank_by: Literal["iqm", "mean", "worst-quarter"] = "iqm"
    out: str = "runs"  # results go to OUT/<script>/<env>/NAME
    name: str = ""  # folder of this run; empty: date and time
    eval_episodes: NonNegativeInt = 32  # episodes per seed in each evaluation; 0: no evaluation
    # env steps per seed between evaluations, after one before training; 0: only at the end; auto: a twentieth of all
    eval_every: str = "auto"
    eval_sampled: bool = False  # evaluate with sampled actions, as act has them with a key, instead of greedy ones
    eval_max_steps: int = 10_000  # steps after which an evaluation episode is cut; lower limits hold
    checkpoint_every: NonNegative = 60.0  # seconds between checkpoints; 0: after every iteration; the end is saved too
    checkpoint_buffer: bool = True  # save the replay buffer too; without it files are small but resuming is not exact
    resume: str = ""  # folder of a run to continue, or to extend with a larger --total-timesteps
    devices: NonNegativeInt = 0  # number of devices of this host to use; 0: all; on a CPU a device is a core
    devices_per_trial: int = 1  # number of devices that split the environments and minibatches of a trial (a seed)
    trials_per_batch: str = "auto"  # trials (seeds x settings) trained at once, others after them; auto: what fits
    # precision of matrix products on a GPU or TPU; tf32 and bfloat16 are faster, but results then depend on the device
    matmul_precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    coordinator: str = ""  # address HOST:PORT of process 0; auto: detected from Slurm, Open MPI, Kubernetes, TPU
    num_processes: int = 1  # number of processes, with --coordinator HOST:PORT
    process_id: NonNegativeInt = 0  # number of this process, with --coordinator HOST:PORT
    wandb: Literal["disabled", "offline", "online"] = "disabled"  # Weights & Biases; offline needs no account
    wandb_project: str = "single-file-jax-rl"  # wandb project
    wandb_per_seed: bool = False  # one wandb run per seed in one group, instead of one run with the IQM over seeds


# Options that may not change when a run is resumed, and those that describe a process instead of the run.
FIXED = ("num_seeds", "seed", "preset", "sweep", "sweep_samples", "sweep_halve", "eval_sampled", "trials_per_batch")
FIXED += ("matmul_precision", "out", "name")
PROCESS = ("resume", "devices_per_trial", "coordinator", "num_processes", "process_id")
OF_PROCESS = ("devices", "coordinator", "process_id")  # in which the processes of one run may differ
# Values of matmul_precision, with JAX's names for them.
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}


def parse_integer(text: str) -> int:
    """Read 1000000, 1_000_000 or 1e6. Raises ValueError for anything else."""
    try:
        number = Decimal(text)
        if number.is_finite() and number.adjusted() < 20 and number == int(number):
            return int(number)
    except InvalidOperation:
        pass
    raise ValueError(f"{text} is not an integer, or too large")


def check_options(options: Options) -> None:
    """Raise ValueError, naming the option, if one has a value that cannot be used."""
    for name, hint in typing.get_type_hints(Options, include_extras=True).items():
        check_value(name, getattr(options, name), hint)
    if options.eval_sampled and options.eval_episodes == 0 and not options.resume:
        raise ValueError("--eval-sampled has no effect with eval_episodes = 0, which evaluates nothing")
    if options.rank_by != Options.rank_by and not (options.sweep or options.resume):
        raise ValueError("--rank-by has no effect without a --sweep, whose settings it ranks")
    if options.sweep_halve != "off":
        _check_halving(options)
    try:
        is_interval = options.eval_every == "auto" or 0 <= parse_integer(options.eval_every) < 2**63
    except ValueError:
        is_interval = False
    if not is_interval:
        raise ValueError(f"eval_every must be auto or a number of env steps, at least 0, not {options.eval_every}")
    batch = options.trials_per_batch
    if batch != "auto" and not (batch.isdecimal() and int(batch) >= 1):
        raise ValueError(f"trials_per_batch must be auto or at least 1, not {batch}")
    if options.name in (".", "..") or "/" in options.name or not options.name.isprintable():
        raise ValueError(f"name must be the name of one folder, not {options.name!r}; --out says where it is")
    if options.name != options.name.strip():
        raise ValueError(f"name must not begin or end with a space, as {options.name!r} does")
    _check_processes(options)


def _check_halving(options: Options) -> None:
    text = options.sweep_halve
    if not (text.isdecimal() and int(text) >= 2):
        raise ValueError(f"sweep_halve must be off or an integer of at least 2, not {text}")
    if not options.sweep:
        raise ValueError(f"--sweep-halve {text} needs a --sweep, whose settings it stops early")
    if options.eval_episodes == 0:
        raise ValueError(f"--sweep-halve {text} chooses by evaluation, which eval_episodes = 0 turns off")
    if not options.checkpoint_buffer:
        raise ValueError(
            f"--sweep-halve {text} goes on from checkpoints with replay buffers; leave out the flag "
            "--no-checkpoint-buffer"
        )


def _check_processes(options: Options) -> None:
    if options.process_id >= options.num_processes:
        raise ValueError(
            f"process_id must be between 0 and num_processes - 1, not {options.process_id} of {options.num_processes}"
        )
    if options.num_processes > 1 and not options.coordinator:
        raise ValueError("num_processes > 1 needs --coordinator HOST:PORT, the same for all of them")
    host, _, port = options.coordinator.rpartition(":")
    is_address = host and port.isdecimal() and 1 <= int(port) <= 65535
    if options.coordinator not in ("", "auto") and not is_address:
        raise ValueError(f"coordinator must be HOST:PORT with a port of 1 to 65535, or auto, not {options.coordinator}")


def resume_flag(directory: Path) -> str:
    """`--resume DIRECTORY`, as a shell takes it."""
    return f"--resume {shlex.quote(str(directory))}"
