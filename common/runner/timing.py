"""Where the time of a command goes."""

import time
from dataclasses import dataclass, field


@dataclass
class Timing:
    """Seconds of this command, from its first check on, and what they were spent on."""

    started: float = field(default_factory=time.perf_counter)
    compiling: float = 0.0  # of initialisation and training
    training: float = 0.0
    evaluating: float = 0.0  # with the wait for its compilation
    env_steps: int = 0  # trained by this process, sum over its lanes

    def add_training(self, seconds: float, env_steps: int) -> None:
        """Count one segment."""
        self.training += seconds
        self.env_steps += env_steps

    def summary(self) -> dict[str, float]:
        """What summary.json says of it."""
        return {
            "wall_seconds": round(time.perf_counter() - self.started, 3),
            "compile_seconds": round(self.compiling, 3),
            "training_seconds": round(self.training, 3),
            "evaluation_seconds": round(self.evaluating, 3),
            "env_steps_trained": self.env_steps,
            "env_steps_per_second": round(self.env_steps / self.training, 1) if self.training else None,
        }
