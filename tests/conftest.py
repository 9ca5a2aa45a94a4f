"""What holds for every test."""

import os

import hypothesis
import jax
import pytest
from helpers import shared_compilations

import common  # noqa: F401  # before any test imports gymnax: it sets the number of CPU devices

jax.config.update("jax_numpy_rank_promotion", "raise")  # a [B, 1] against a [B] is a mistake, not a matrix
jax.config.update("jax_default_matmul_precision", "float32")  # as numpy computes; the default of a GPU is TF32
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")

# The tests compile far longer than they run: these flags more than halve it. JAX reads them when its backend
# starts, and aborts the process if it does not know one.
FLAGS = ["backend_optimization_level=0", "cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):
    FLAGS.append("cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in FLAGS))


@pytest.fixture(scope="module")
def compilations(tmp_path_factory):
    """One folder of compiled programs for all tests."""
    with shared_compilations(tmp_path_factory) as folder:
        yield folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
