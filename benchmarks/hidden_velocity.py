"""Scripts in CartPole whose velocities are not observed, so that one observation is not enough.

python benchmarks/hidden_velocity.py variants/ppo_rnn.py --env CartPole-hidden-velocity --num-seeds 8
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # the folder of `common`
import common  # noqa: F401  # before gymnax

# ruff: isort: split
import gymnax
from gymnax.environments.classic_control.cartpole import CartPole


class HiddenCartPole(CartPole):
    """Observes the position of the cart and the angle of the pole, [2]."""

    def get_obs(self, state, params=None, key=None):
        return super().get_obs(state, params, key)[::2]


gymnax.register("CartPole-hidden-velocity", HiddenCartPole)

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
