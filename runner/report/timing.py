"""Seconds that a command spends on compiling, training, evaluating, saving and the report."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Timing:
    """Seconds of this command, from its first check on, and what they were spent on."""

    started: float = field(default_factory=time.perf_counter)
    compiling: float = 0.0  # of initialisation and training
    training: float = 0.0
    evaluating: float = 0.0  # with the wait for its compilation
    saving: float = 0.0  # checkpoints and metrics
    reporting: float = 0.0  # the statistics and pictures at the end
    env_steps: int = 0  # trained by this process, sum over its trials

    @contextlib.contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Add the seconds of a block to the field `what`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, what, getattr(self, what) + time.perf_counter() - started)

    def add_training(self, seconds: float, env_steps: int) -> None:
        """Count one segment."""
        self.training += seconds
        self.env_steps += env_steps

    def summary(self) -> dict[str, float]:
        """The entry `timing` of summary.json."""
        return {
            "wall_seconds": round(time.perf_counter() - self.started, 3),
            "compile_seconds": round(self.compiling, 3),
            "training_seconds": round(self.training, 3),
            "evaluation_seconds": round(self.evaluating, 3),
            "saving_seconds": round(self.saving, 3),
            "report_seconds": round(self.reporting, 3),
            "env_steps_trained": self.env_steps,
            "env_steps_per_second": round(self.env_steps / self.training, 1) if self.training else None,
        }
