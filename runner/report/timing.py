"""Seconds that a command spends on compiling, training, evaluating, saving and the report."""

import contextlib
import time
from collections.abc import Iterator


class Timing:
    """Seconds of this command, from its first check on, by what they were spent on.

    compile: initialisation and training. evaluation: with the wait for its compilation. saving: checkpoints and
    metrics. report: the statistics and pictures at the end. `env_steps` are those that this process trains.
    """

    def __init__(self):
        self.started, self.env_steps = time.perf_counter(), 0
        self.seconds = dict.fromkeys(("compile", "training", "evaluation", "saving", "report"), 0.0)

    @contextlib.contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Add the seconds of a block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - started

    def summary(self) -> dict[str, float | None]:
        """The entry `timing` of summary.json."""
        seconds, training = {"wall": time.perf_counter() - self.started} | self.seconds, self.seconds["training"]
        speed = round(self.env_steps / training, 1) if training else None
        entries = {f"{name}_seconds": round(x, 3) for name, x in seconds.items()}
        return entries | {"env_steps_trained": self.env_steps, "env_steps_per_second": speed}
