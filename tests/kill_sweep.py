"""Kill a run at random moments, resume it, and compare it with a run that nothing disturbed, bit for bit.

python tests/kill_sweep.py [NUMBER] [SCRIPT] [SEED] [FACTOR]      20 moments of ppo if nothing is said; takes minutes

With a FACTOR the run is a sweep that is halved by it.
"""

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
from helpers import (  # noqa: E402
    ENVS,
    Process,
    differences,
    execute,
    flags,
    path_of,
    run_differences,
    saved_iteration,
    saved_metrics,
    small_run,
)
from runs import OFTEN, summary_of  # noqa: E402

# What a run says before it compiles and before it trains; one kill in four may fall between them.
EVENTS = ("of state", "compiled in")


def main(number: int = 20, script: str = "ppo", seed: int = 0, factor: int = 0) -> int:
    """Returns how many of the resumed runs were other runs."""
    folder = Path(tempfile.mkdtemp())
    environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compilations")}
    parent = folder / "runs" / script / ENVS[script][0]
    reference = parent / "reference"

    sweep = ["--sweep", "gamma=0.8,0.9,0.95,0.98,0.99,0.999", *flags(sweep_halve=factor)] if factor else []

    def arguments(name):
        return [path_of(script), *small_run(script, name=name), *OFTEN, *sweep]

    def compare(directory):
        """What differs from the reference."""
        if not factor:
            different = run_differences(directory, reference)
        else:
            different = differences(saved_metrics(directory), saved_metrics(reference))
        return different or ["summary.json"] * (summary_of(directory) != summary_of(reference))

    for name in ("first", "reference"):  # the first one compiles
        with Process(*arguments(name), cwd=folder, **environment) as process:
            lengths = {}
            for event in EVENTS:
                process.wait_for_text(event)
                lengths[event] = -time.perf_counter()
            assert process.finish().status == 0
            lengths = {event: length + time.perf_counter() for event, length in lengths.items()}
    print(f"a run ends {' and '.join(f'{lengths[event]:.1f} s after {event!r}' for event in EVENTS)}", flush=True)

    random, failures = np.random.default_rng(seed), 0
    for i in range(number):
        name, directory = f"killed-{i}", parent / f"killed-{i}"
        event = EVENTS[i % 4 > 0]
        moment = random.uniform(0, lengths[event])
        with Process(*arguments(name), cwd=folder, **environment) as process:
            process.wait_for_text(event)
            time.sleep(moment)
            process.send(signal.SIGKILL)
            status = process.finish().status
        iterations = [saved_iteration(path.parent) for path in directory.rglob("checkpoint.safetensors")]
        left = [f"a checkpoint of iteration {max(iterations, default=0)}"]
        aside = [path.name for path in directory.rglob(".*")]
        # Options that are not the defaults come from the record.
        result = execute(path_of(script), "--resume", str(directory), cwd=folder, **environment)
        different = [result.stderr] if result.status else compare(directory)
        failures += bool(different)
        print(
            f"{i + 1:>3}  killed {moment:5.2f} s after {event!r} (status {status}), left {', '.join(left + aside)}: "
            f"{f'ANOTHER RUN: {different}' if different else 'the same run'}",
            flush=True,
        )
    shutil.rmtree(folder)
    print(f"{number - failures} of {number} were the same run, bit for bit")
    return failures


if __name__ == "__main__":
    sys.exit(bool(main(*[kind(word) for kind, word in zip((int, str, int, int), sys.argv[1:], strict=False)])))
