"""The directory of an exported policy: its files and a README that says how to call them."""

import shutil
import statistics
import timeit
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from algd.export.onnx import onnx_model
from algd.networks import numpy_policy
from algd.networks.numpy_policy import Diffusion, NumpyPolicy, PolicyData, flattened
from algd.types import UserError, nearest

Format = Literal["numpy", "onnx", "stablehlo"]
PLATFORMS = ("cpu", "cuda", "tpu")


class Program(NamedTuple):
    """A policy as JAX functions of rows: of observations, and of observations and raw keys."""

    deterministic: Callable[..., Any]
    sampled: Callable[..., Any]


def check_format(name: str) -> None:
    """Refuse a form that does not exist."""
    known = get_args(Format)
    if name not in known:
        raise UserError(
            f"A policy is exported as {', '.join(known)}, not {name!r}.{nearest(name, known)}"
        )


def write(
    data: PolicyData, program: Program, form: str, directory: Path, origin: dict[str, Any]
) -> list[Path]:
    """Write the policy into a new directory; the files written."""
    check_format(form)
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not an empty directory; choose another.")
    export = {"numpy": _numpy, "onnx": _onnx, "stablehlo": _stablehlo}[form]
    contents, usage, latency = export(data, program)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if isinstance(content, dict):
                np.savez(directory / name, allow_pickle=False, **content)
            elif isinstance(content, Path):
                shutil.copyfile(content, directory / name)
            else:
                (directory / name).write_bytes(content)
        text = readme(data, form, usage, latency, origin)
        (directory / "README.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"Cannot write to {directory}: {error.strerror}.") from error
    return [directory / name for name in (*contents, "README.md")]


def _always_sampled(data: PolicyData) -> bool:
    return isinstance(data.policy, Diffusion) and data.policy.always_sampled


def _files_told(data: PolicyData, ending: str) -> str:
    """Which of the two files there are, for the reader of a README."""
    if _always_sampled(data):
        return (
            "This policy always draws, also where it is asked for one action: there is no\n"
            "deterministic file.\n\n"
        )
    return f"`policy.{ending}` is deterministic and takes observations alone.\n\n"


def _numpy(data: PolicyData, program: Program) -> tuple[dict[str, Any], str, float | None]:
    policy = NumpyPolicy(data)
    obs = np.zeros(data.obs_size, np.float32)
    contents = {"policy.npz": flattened(data), "numpy_policy.py": Path(numpy_policy.__file__)}
    return contents, NUMPY_USAGE, latency_of(lambda: policy.predict(obs))


def _onnx(data: PolicyData, program: Program) -> tuple[dict[str, Any], str, float | None]:
    contents = {"policy_sampled.onnx": onnx_model(data, sampled=True)}
    if not _always_sampled(data):
        contents["policy.onnx"] = onnx_model(data, sampled=False)
    noise = f"(len(rows), *{data.noise_shape})"
    usage = _files_told(data, "onnx") + ONNX_USAGE.replace("NOISE_SHAPE", noise)
    try:
        import onnxruntime
    except ImportError:
        return contents, usage, None
    session = onnxruntime.InferenceSession(contents["policy_sampled.onnx"])
    feeds = {
        "observation": np.zeros((1, data.obs_size), np.float32),
        "noise": np.zeros((1, *data.noise_shape), np.float32),
    }
    return contents, usage, latency_of(lambda: session.run(None, feeds))


def _stablehlo(data: PolicyData, program: Program) -> tuple[dict[str, Any], str, float | None]:
    from jax import export

    # JAX reads and writes these files with it, but does not require it.
    if find_spec("flatbuffers") is None:
        raise UserError("StableHLO needs an extra package: pip install 'algd[export]'")
    rows, keys = export.symbolic_args_specs(
        (jax.ShapeDtypeStruct((1, data.obs_size), np.float32), jax.ShapeDtypeStruct((1, 2), "u4")),
        ("batch, _", "batch, _"),
    )
    sampled = export.export(jax.jit(program.sampled), platforms=PLATFORMS)(rows, keys)
    contents = {"policy_sampled.stablehlo": bytes(sampled.serialize())}
    if not _always_sampled(data):
        plain = export.export(jax.jit(program.deterministic), platforms=PLATFORMS)(rows)
        contents["policy.stablehlo"] = bytes(plain.serialize())
    call = jax.jit(sampled.call)
    obs, key = np.zeros((1, data.obs_size), np.float32), np.zeros((1, 2), np.uint32)
    latency = latency_of(lambda: jax.block_until_ready(call(obs, key)))
    return contents, _files_told(data, "stablehlo") + STABLEHLO_USAGE, latency


def latency_of(call: Callable[[], Any], calls: int = 200) -> float:
    """Median seconds of one call, after a few to warm up."""
    return statistics.median(timeit.repeat(call, repeat=10 + calls, number=1)[10:])


def readme(
    data: PolicyData, form: str, usage: str, latency: float | None, origin: dict[str, Any]
) -> str:
    """What a stranger must know to call the policy."""
    levels, size = data.noise_shape
    measured = "not measured (onnxruntime is not installed)"
    if latency is not None:
        measured = f"{latency * 1e6:.0f} µs median for one observation, on the exporting machine"
    modes = "deterministic, sampled" if not _always_sampled(data) else "sampled only"
    if form == "numpy" and data.critics is not None:
        modes += ", best of n"
    facts = {
        **origin,
        "`observation`": f"float32 [batch, {data.obs_size}]",
        "`noise`": f"float32 [batch, {levels}, {size}], standard normal (sampled, ONNX)",
        "`action`": f"float32 [batch, {size}]",
        "lowest action": data.low.tolist(),
        "highest action": data.high.tolist(),
        "modes": modes,
        "latency": measured,
    }
    if form != "onnx":
        del facts["`noise`"]
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"# A policy trained with algd\n\n| | |\n|---|---|\n{table}\n\n{usage}"


NUMPY_USAGE = """Needs Python 3.10 and NumPy, nothing else. Copy `numpy_policy.py` and `policy.npz`:

```python
from numpy_policy import NumpyPolicy

policy = NumpyPolicy.load("policy.npz")
action = policy.predict(observation)  # one observation, or a batch of rows
action = policy.predict(observation, mode="best", candidates=16)
```

`predict` returns the action alone, not a pair of action and state as in other libraries. An object
reuses its memory: give each thread its own. A wrong shape raises a `ValueError`.
"""
ONNX_USAGE = """Runs in any ONNX runtime; `policy_sampled.onnx` takes observations and the noise
(zeros give a chain without any, which the deterministic action may not be):

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("policy_sampled.onnx")
noise = np.random.default_rng(0).standard_normal(NOISE_SHAPE, np.float32)
(action,) = session.run(None, {"observation": rows, "noise": noise})
```
"""
STABLEHLO_USAGE = """Needs JAX and flatbuffers (`pip install jax flatbuffers`), nothing of algd.
`policy_sampled.stablehlo` takes observations and `key`, uint32 [batch, 2], two random words
for each row:

```python
import jax
from jax import export

policy = export.deserialize(open("policy_sampled.stablehlo", "rb").read())
key = jax.random.key_data(jax.random.split(jax.random.key(0), len(rows)))
action = policy.call(rows, key)
```
"""
