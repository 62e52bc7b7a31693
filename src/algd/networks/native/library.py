"""The compiled code: built by the machine's own C++ compiler at its first use, then kept.

Nothing depends on it. Without a compiler, or with `ALGD_NATIVE=0`, XLA computes the same.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from filelock import FileLock

from algd.cache import cache_folder
from algd.types import UserError

SOURCES = [
    Path(__file__).with_name(name)
    for name in ("critics.cc", "mlp.cc", "normalised.cc", "numbers.h")
]
CALLS = (
    *("critics_forward", "critics_backward", "critics_regress"),
    *("mlp_forward", "mlp_backward"),
    *("normalised_forward", "normalised_backward"),
)
# Matrices are multiplied two vectors of columns at a time; a vector has sixteen floats at most.
COLUMNS = 32
# Not every compiler knows the first by this name.
MACHINE_FLAGS = (["-march=native"], ["-mcpu=native"], [])
# A compiler that takes longer than this waits for something that does not come.
COMPILER_SECONDS = 600.0
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-pthread", "-w"]


def available() -> bool:
    """Whether XLA can call the compiled code in this process."""
    return in_use() is not None


def units(rounded: bool) -> str:
    """What multiplies here, single precision or factors `rounded` to bfloat16: plain, avx2, avx512,
    avx512-bf16, amx, or xla without compiled code."""
    library = in_use()
    return "xla" if library is None else units_of(library, rounded)


def units_of(library: ctypes.CDLL, rounded: bool) -> str:
    """What a library was compiled to multiply with."""
    library.units.restype = ctypes.c_char_p
    return library.units(ctypes.c_bool(rounded)).decode()


@cache
def in_use() -> ctypes.CDLL | None:
    """The compiled code of this process, known to XLA; None where there is none."""
    if os.environ.get("ALGD_NATIVE") == "0" or jax.default_backend() != "cpu":
        return None
    if os.name == "nt":
        # How its compilers are called, and what they make, is another matter.
        return None
    found = compiler()
    if found is None:
        return None
    try:
        library = loaded(found)
    except OSError as error:
        warnings.warn(
            f"algd's C++ code cannot be used, and XLA, which is slower, takes its place: {error} "
            "(ALGD_NATIVE=0 silences this.)",
            stacklevel=2,
        )
        return None
    register(library, "algd")
    return library


def register(library: ctypes.CDLL, prefix: str) -> None:
    """Let XLA call a library's functions, by names that begin with the prefix."""
    for call in CALLS:
        handler = jax.ffi.pycapsule(getattr(library, call))
        jax.ffi.register_ffi_target(f"{prefix}_{call}", handler, platform="cpu")


def call(name: str, *shapes: tuple[int, ...]) -> Any:
    """What computes arrays of these shapes by compiled code; mapped, one after the other."""
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.ffi.ffi_call(f"algd_{name}", results, vmap_method="sequential")


def compiler() -> list[str] | None:
    """The command of the C++ compiler that CXX names, or of the first that is found."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named and shutil.which(named[0]) is None:
        raise UserError(
            f"CXX names {named[0]!r}, and there is no such program: name a C++ compiler, unset CXX "
            "to have one looked for, or set ALGD_NATIVE=0 to do without."
        )
    found = (path for name in ("c++", "g++", "clang++") if (path := shutil.which(name)))
    return named or next(([path] for path in found), None)


def loaded(compiler: list[str]) -> ctypes.CDLL:
    """The library for this processor, compiled if it is not kept yet; an OSError if it cannot be.

    Code runs with the user's rights: where others could have put it, it is not taken.
    """
    folder = cache_folder()
    if folder is None:
        complaint = "there is no home directory"
    else:
        complaint = not_private(folder / "native")
        if complaint is None:
            return ctypes.CDLL(str(built(compiler, folder / "native")))
    warnings.warn(
        f"algd's C++ code is compiled for this process alone, because {complaint}.",
        stacklevel=3,
    )
    # What is loaded stays so without its file.
    with tempfile.TemporaryDirectory(prefix="algd-native-") as own:
        return ctypes.CDLL(str(built(compiler, Path(own))))


def not_private(directory: Path) -> str | None:
    """Why somebody else may have written into the directory, which is made if it is not there."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        return f"{directory} cannot be used ({error.strerror})"
    if status.st_uid != os.geteuid():
        return f"{directory} belongs to another user"
    return f"{directory} can be written by others" if status.st_mode & 0o022 else None


def built(compiler: list[str], kept: Path) -> Path:
    """The library in this directory, compiled if it is not there or not whole."""
    parts = (
        *(source.read_text(encoding="utf-8") for source in SOURCES),
        jax.__version__,
        os.path.realpath(shutil.which(compiler[0]) or compiler[0]),
        *compiler[1:],
        processor(),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    library = kept / f"networks-{digest}.so"
    if whole(library):
        return library
    with ExitStack() as stack:
        # Of several processes one compiles, and the others wait for it. Where a disk knows no
        # locks, each compiles its own, and the last one's takes the name, whole.
        with suppress(OSError):
            stack.enter_context(FileLock(kept / "lock"))
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=kept))
        if whole(library):
            return library
        made, complaint = Path(directory) / library.name, None
        for machine in MACHINE_FLAGS:
            complaint = compiled([*compiler, *FLAGS, *machine], made)
            if complaint is None:
                keep(made, library)
                return library
    raise OSError(f"{shlex.join(compiler)} says: {complaint}")


def keep(made: Path, library: Path) -> None:
    """Give the library its name, and then its checksum's: cut short, they do not fit together."""
    checked = made.with_suffix(".sha256")
    checked.write_bytes(checksum(made))
    for source, target in ((made, library), (checked, library.with_suffix(".sha256"))):
        with open(source, "rb") as file:
            os.fsync(file.fileno())
        os.replace(source, target)


def whole(library: Path) -> bool:
    """Whether it is what was compiled: half a library would kill the process that touches it."""
    try:
        return library.with_suffix(".sha256").read_bytes() == checksum(library)
    except OSError:
        return False


def checksum(file: Path) -> bytes:
    """What a file's bytes are known by."""
    return hashlib.sha256(file.read_bytes()).hexdigest().encode()


def compiled(command: list[str], library: Path) -> str | None:
    """Compile the sources side by side and link them; the compiler's complaint if it has one."""
    sources = [source for source in SOURCES if source.suffix == ".cc"]
    objects = [str(library.with_name(f"{source.stem}.o")) for source in sources]
    compile_each = [*command, "-isystem", jax.ffi.include_dir(), "-c"]
    steps = [
        [*compile_each, str(source), "-o", made]
        for source, made in zip(sources, objects, strict=True)
    ]
    link = [*command, "-shared", *objects, "-o", str(library)]
    return complaint_of(steps) or complaint_of([link])


def complaint_of(commands: list[list[str]]) -> str | None:
    """Run commands side by side; what they say if one fails, a TimeoutError if one does not end."""
    running = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A compiler starts others, which must end with it.
            start_new_session=True,
        )
        for command in commands
    ]
    deadline = time.monotonic() + COMPILER_SECONDS
    try:
        said = [process.communicate(timeout=deadline - time.monotonic())[1] for process in running]
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(
            f"{commands[0][0]} has not finished after {COMPILER_SECONDS:g} seconds."
        ) from error
    finally:
        for process in running:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    failed = any(process.returncode for process in running)
    return "\n".join(said).strip()[:500] or "nothing" if failed else None


def processor() -> str:
    """What tells processors apart: code for one may not run on another that shares the disk."""
    return f"{platform.machine()} {told_of_processor('flags') or platform.processor()}"


def told_of_processor(what: str) -> str:
    """What Linux says of the first processor, such as its `model name`; elsewhere nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(what)), "")
