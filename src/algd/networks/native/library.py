"""The compiled code: built by the machine's own C++ compiler at its first use, then kept.

Nothing depends on it. Without a compiler, or with `ALGD_NATIVE=0`, XLA computes the same.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

SOURCES = [Path(__file__).with_name(name) for name in ("critics.cc", "mlp.cc", "numbers.h")]
CALLS = ("critics_forward", "critics_backward", "critics_regress", "mlp_forward", "mlp_backward")
# Matrices are multiplied two vectors of columns at a time; a vector has sixteen floats at most.
COLUMNS = 32
# Not every compiler knows the first by this name.
MACHINE_FLAGS = (["-march=native"], ["-mcpu=native"], [])
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-pthread", "-w"]


@cache
def available() -> bool:
    """Whether XLA can call the compiled code in this process."""
    if os.environ.get("ALGD_NATIVE") == "0" or jax.default_backend() != "cpu":
        return False
    found = compiler()
    if found is None:
        return False
    try:
        library = ctypes.CDLL(str(built(found)))
    except OSError as error:
        warnings.warn(
            f"algd's C++ code cannot be used, and XLA, which is slower, takes its place: {error} "
            "(ALGD_NATIVE=0 silences this.)",
            stacklevel=2,
        )
        return False
    for call in CALLS:
        handler = jax.ffi.pycapsule(getattr(library, call))
        jax.ffi.register_ffi_target(f"algd_{call}", handler, platform="cpu")
    return True


def call(name: str, *shapes: tuple[int, ...]) -> Any:
    """What computes arrays of these shapes by compiled code; mapped, one after the other."""
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.ffi.ffi_call(f"algd_{name}", results, vmap_method="sequential")


def compiler() -> str | None:
    """The C++ compiler that the environment names, or the first that is found."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def built(compiler: str) -> Path:
    """The library for this processor, compiled if it is not there yet; an OSError if it cannot."""
    parts = (
        *(source.read_text() for source in SOURCES),
        jax.__version__,
        os.path.realpath(compiler),
        processor(),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "algd" / "native"
    library = kept / f"networks-{digest}.so"
    if library.exists():
        return library
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock, tempfile.TemporaryDirectory(dir=kept) as directory:
        # Of several processes one compiles, and the others wait for it. Where a disk knows no
        # locks, each compiles its own, and the last one's takes the name, whole.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        made, complaint = Path(directory) / library.name, None
        for machine in () if library.exists() else MACHINE_FLAGS:
            complaint = compiled([compiler, *FLAGS, *machine], made)
            if complaint is None:
                os.replace(made, library)
                break
    if complaint is not None:
        raise OSError(f"{compiler} says: {complaint}")
    return library


def compiled(command: list[str], library: Path) -> str | None:
    """Compile the sources side by side and link them; the compiler's complaint if it has one."""
    sources = [source for source in SOURCES if source.suffix == ".cc"]
    objects = [str(library.with_name(f"{source.stem}.o")) for source in sources]
    compile_each = [*command, "-isystem", jax.ffi.include_dir(), "-c"]
    running = [
        subprocess.Popen(
            [*compile_each, str(source), "-o", made], stderr=subprocess.PIPE, text=True
        )
        for source, made in zip(sources, objects, strict=True)
    ]
    complaints = [process.communicate()[1] for process in running]
    if any(process.returncode for process in running):
        return "\n".join(complaints).strip()[:500]
    linked = subprocess.run(
        [*command, "-shared", *objects, "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    return linked.stderr.strip()[:500] if linked.returncode else None


def processor() -> str:
    """What tells processors apart: code for one may not run on another that shares the disk."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return platform.machine() + next((line for line in lines if line.startswith("flags")), "")
