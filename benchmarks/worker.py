"""One contender of speed.py: `worker.py SCRIPT SEEDS JSON`, ours; `worker.py PEER:ALGORITHM SEEDS JSON`, others.

Compiles, then runs for every line on stdin. Answers on stdout, a line of JSON each.
"""

import ctypes
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import MagicMock

MATMUL = 1024  # rows and columns of the product whose rate is called the peak


def main(script: str, seeds: int, settings: dict) -> None:
    """Say how long imports and compilation took, then how long each run takes, in seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print when they are imported
    started = time.perf_counter()
    peer, _, algorithm = script.rpartition(":")
    peers = {"purejaxrl": purejaxrl, "rejax": rejax, "rltools": rltools, "sb3": stable_baselines3, "sbx": sbx}
    build = peers[peer] if peer else ours
    run, num_steps = build(algorithm, seeds, settings)
    print(json.dumps({"compile": time.perf_counter() - started, "num_steps": num_steps}), file=answers, flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        run()
        seconds = time.perf_counter() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = {"seconds": seconds, "peak_kib": memory}
        print(json.dumps(answer if peer else answer | {"matmul": matmul_rate()}), file=answers, flush=True)


def ours(script: str, seeds: int, settings: dict):
    """The programs that the command line runs, the whole run in one call. Env steps are those of all seeds, less those
    before learning starts."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import jax
    import numpy as np

    from runner.devices.placement import compile_init, compile_segment, make_placement

    module = importlib.import_module(script)
    settings = {name: tuple(x) if isinstance(x, list) else x for name, x in settings.items()}
    config = module.Config(**settings)
    algorithm, spread = module.make(config), make_placement(seeds, jax.local_device_count())
    keys = spread.place(jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32)))
    init = compile_init(lambda settings: algorithm, spread, {})
    segment = compile_segment(lambda settings: algorithm, spread, {}, init({}, keys), config.num_iterations)

    def run():
        _, metrics = segment({}, init({}, keys), np.int32(0), np.int32(config.num_iterations))
        jax.block_until_ready(metrics)

    return run, seeds * (config.env_steps(config.num_iterations) - config.env_steps(0))


def purejaxrl(script: str, seeds: int, settings: dict):
    """A script of PureJaxRL, whose clone is in PYTHONPATH. It imports brax and navix, and uses neither."""
    sys.modules |= dict.fromkeys(("brax", "brax.envs.wrappers.training", "navix"), MagicMock())
    train = importlib.import_module(f"purejaxrl.{script}").make_train(settings)
    return compile_train(train, seeds), seeds * settings["TOTAL_TIMESTEPS"]


def rejax(algo: str, seeds: int, settings: dict):
    """Rejax without its evaluation. Env steps are those of all seeds, less those before learning starts."""
    from rejax import get_algo

    algorithm = get_algo(algo).create(**settings, eval_freq=settings["total_timesteps"], skip_initial_evaluation=True)
    algorithm = algorithm.replace(eval_callback=lambda *_: ())
    return compile_train(algorithm.train, seeds), seeds * (settings["total_timesteps"] - settings.get("fill_buffer", 0))


def compile_train(train, seeds: int):
    """Compile a function of a key for as many keys as there are seeds; one key has no axis, as in ours."""
    import jax
    import numpy as np

    keys = jax.vmap(jax.random.PRNGKey)(np.arange(seeds))
    function, keys = (jax.vmap(train), keys) if seeds > 1 else (train, keys[0])
    program = jax.jit(function).lower(keys).compile()
    return lambda: jax.block_until_ready(program(keys))


def stable_baselines3(algo: str, seeds: int, settings: dict):
    """Stable-Baselines3, which trains one seed, on one thread."""
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    return learn(getattr(stable_baselines3, algo), seeds, settings, device="cpu")


def sbx(algo: str, seeds: int, settings: dict):
    """SBX, which trains one seed."""
    import sbx

    return learn(getattr(sbx, algo), seeds, settings)


def learn(algorithm, seeds: int, settings: dict, **more):
    """Make an environment and a model of either library, and train it."""
    from stable_baselines3.common.env_util import make_vec_env

    assert seeds == 1, "these train one seed at a time"
    settings = settings.copy()
    env, num_steps = make_vec_env(settings.pop("env"), settings.pop("num_envs")), settings.pop("total_timesteps")
    model = algorithm("MlpPolicy", env, **settings, **more)

    def run():
        model.learn(num_steps, reset_num_timesteps=False)

    return run, num_steps


def rltools(algo: str, seeds: int, settings: dict):
    """RLtools' own benchmark, 10,000 env steps, with another batch size. Its clone is RLTOOLS, MKL is beside this
    Python. Env steps are those after the 100 before learning starts."""
    assert seeds == 1, "it trains one seed at a time"
    clone, prefix = Path(os.environ["RLTOOLS"]), Path(sys.prefix)
    source = (clone / f"src/rl/environments/pendulum/{algo}/cpu/training.h").read_text()
    before = "BATCH_SIZE = 100;"
    assert source.count(before) == 2, "its benchmark is another"
    source = source.replace(before, f"BATCH_SIZE = {settings['batch_size']};")
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "training.cpp"), Path(folder, "training.so")
        file.write_text(source + '\nextern "C" void train() { run(); }\n')
        command = ["g++", "-std=c++17", "-Ofast", "-march=native", "-shared", "-fPIC", "-w", str(file), "-o", library]
        command += [f"-I{clone / 'include'}", f"-I{prefix / 'include'}", f"-L{prefix / 'lib'}"]
        command += ["-DBENCHMARK", "-DRL_TOOLS_BACKEND_ENABLE_MKL", f"-Wl,-rpath,{prefix / 'lib'}"]
        parts = ("mkl_intel_lp64", "mkl_sequential", "mkl_core")  # wheels have no names without a version
        libraries = [str(next((prefix / "lib").glob(f"lib{part}.so*"))) for part in parts]
        subprocess.run([*command, *libraries], check=True)
        return ctypes.CDLL(str(library)).train, 9_900


def matmul_rate() -> float:
    """Floating-point operations per second of a matrix product on one device, the best of ten."""
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.matmul)
    x = jnp.ones((MATMUL, MATMUL))
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - started)
    return 2 * MATMUL**3 / min(seconds)


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):  # before JAX counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["CORES"])])
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
