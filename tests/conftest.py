"""Every test runs with checked shapes and without silent promotion of types.

Tiny networks take longer to compile than to train: nothing is spent on optimising them, and
programs that tests and the processes they start compile are kept in one place. So is Python's
bytecode, also where the environment says otherwise: dozens of processes are started.
"""

import gc
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "algd-test-programs")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
# Where in the source an operation comes from: nobody reads it, and it takes a tenth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Gone in later releases, which end the process at a flag that they do not know.
EMITTERS = "--xla_cpu_use_fusion_emitters=false " if version("jax").startswith("0.10.") else ""
os.environ.setdefault(
    "XLA_FLAGS",
    f"--xla_backend_optimization_level=0 {EMITTERS}"
    # Workers keep the cores busy already: cut into pieces, programs take a sixth longer to compile.
    "--xla_cpu_parallel_codegen_split_count=1",
)

import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("algd", "beartype.beartype").__enter__()

# Few but long: begun first, so that no worker is left alone with them at the end.
LONG_FILES = (
    "test_ray",
    "test_quality",
    "test_reliability",
    "test_interruptions",
    "test_battery",
    "test_parallel",
    "test_training",
    "test_exactness",
    "test_device",
    "test_native",
    "test_site",
    "test_adapters",
    "test_any_environment",
    "test_theory",
    "test_sweep",
)
VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "sve")


def processor() -> str:
    """Its name, and those of its flags that decide which loops and kernels are taken."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = told.get("flags") or told.get("Features", "")
    vectors = [flag for flag in flags.split() if flag.startswith(VECTORS)]
    return f"{told.get('model name', platform.machine())}: {' '.join(vectors)}"


@pytest.fixture
def unpainted(monkeypatch):
    """Curves are drawn but not painted, which takes longer than a tiny run."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())


def pytest_sessionstart(session):
    # Not as pytest's header, which -q hides: a failure elsewhere must be placed.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        libraries = f"NumPy {version('numpy')}, JAX {version('jax')}"
        python = f"Python {platform.python_version()}"
        reporter.write_line(f"{processor()}\n{os.cpu_count()} processors, {python}, {libraries}")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONG_FILES)
    # What is imported by now stays: the collector need not look at it again and again, and at what
    # tracing leaves behind less often than a small program would want.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
