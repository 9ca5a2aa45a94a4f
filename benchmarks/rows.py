"""The rows of RESULTS.md and GPU.md: what rows.toml says, and the settings, commands and raw files of each."""

import importlib
import json
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hidden_velocity  # noqa: F401  # registers its environments
import numpy as np
from tables import FOLDER, ROOT, read

from common.presets import preset
from runner.options.parse import to_flags
from runner.report.statistics import iqm

RAW = FOLDER / "results" / "raw"
HEADLINE, GPU, OPTIONS = "Classic control", "Presets of GPU size", "Options"  # families with rules of their own


@dataclass(frozen=True)
class Pair:
    """A script, an environment, which of its presets, and what is known of them."""

    script: str
    env: str
    bar: float | None = None  # the goal for its return
    published: str = "none"  # the best published number, its env steps and its source
    num_seeds: int = 20
    preset: str = ""  # its name; "": the one without
    best: float | None = None  # the best number in `published`
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the Config that differ from the preset, and their values
    is_sampled: bool = False  # scores are of sampled actions, as the published one
    eval_episodes: int = 32  # per seed in each evaluation of the curve

    @property
    def name(self) -> str:
        """`ppo/CartPole-v1`, with a named preset `ppo/brax/reacher/small`, with a change `dqn/CartPole-v1/n_step=1`."""
        changes = ",".join(f"{field}={value}" for field, value in self.changes)
        return "/".join(filter(None, [self.script, self.env, self.preset, changes]))

    @property
    def flags(self) -> str:
        """The changes as they are typed."""
        return " ".join(to_flags(dict(self.changes)))

    @property
    def file(self) -> str:
        """The script's path from the root."""
        return f"{self.script}.py" if (ROOT / f"{self.script}.py").exists() else f"variants/{self.script}.py"

    @property
    def command(self) -> list[str]:
        """The words after `python`: the script, and before it the one that registers the environment."""
        return [*["benchmarks/hidden_velocity.py"] * self.env.endswith("-hidden-velocity"), self.file]

    @property
    def path(self) -> Path:
        """The raw file."""
        return RAW / f"{re.sub('[/:=,]', '-', self.name)}.json"


def read_rows() -> tuple[dict[str, list[Pair]], list[str]]:
    """The rows of each family, and the names of those in README.md."""
    content = tomllib.loads((FOLDER / "rows.toml").read_text())
    families = {}
    for family, rows in content["families"].items():
        for row in rows:
            row["changes"] = tuple(row.get("changes", {}).items())
            row.setdefault("published", content["published"].get(row["env"], "none"))
        families[family] = [Pair(**row) for row in rows]
    return families, content["highlights"]


FAMILIES, HIGHLIGHTS = read_rows()
PAIRS = [pair for pairs in FAMILIES.values() for pair in pairs]


def make_config(pair: Pair) -> Any:
    """The Config of a pair: its preset with the changes."""
    return preset(importlib.import_module(pair.script).Config, pair.env, pair.preset, **dict(pair.changes))


def settings(pair: Pair) -> dict[str, Any]:
    """The settings of a pair, as config.json has them."""
    return json.loads(json.dumps(asdict(make_config(pair))))


def read_raws() -> dict[Pair, dict[str, Any]]:
    """The recorded content of each pair that has a raw file."""
    return {pair: read(pair.path) for pair in PAIRS if pair.path.exists()}


def has_failed(raw: dict[str, Any]) -> np.ndarray:
    """Which seeds end below half of the way from random actions to the IQM of the row, [num_seeds]."""
    scores, random = np.array(raw["final_episode_return"]), raw["random_episode_return"]
    return scores < (random + iqm(scores)) / 2


def wins(scores: np.ndarray, published: float) -> np.ndarray:
    """1 where a score is higher than the published number, 0.5 where it is the same, else 0; [num_seeds]."""
    return np.where(np.isclose(scores, published), 0.5, scores > published)


def wilson(x: np.ndarray) -> tuple[float, float, float]:
    """The mean of x, [num_seeds], each 0 or 1, and its 95 % interval, Wilson's (1927), which holds at 0 and 1 too.

    It is too wide where x has halves, of ties.
    """
    n, share, z2 = len(x), float(np.mean(x)), 1.96**2
    middle, half = share + z2 / (2 * n), (z2 * (share * (1 - share) / n + z2 / (4 * n**2))) ** 0.5
    return share, (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
