"""Exported policies act like the library, need what they say they need, and refuse the rest."""

import ast
import re
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

from algd.cli import main
from algd.networks.numpy_policy import NumpyPolicy, flattened, rebuilt
from algd.types import Budget, EnvSpec, RanksActions, UserError
from support.alone import ROOT, requirements, run_alone
from support.scattered import scattered

# Observations and actions of a DiffDrive, a Safety-Gym and a velocity task, and a crooked box.
SPECS = {
    "DiffDrive": EnvSpec(17, (-1.0,) * 2, (1.0,) * 2, (Budget(20.0),), 400),
    "PointButton1": EnvSpec(76, (-1.0,) * 2, (1.0,) * 2, (Budget(10.0),) * 3, 400),
    "HalfCheetahVelocity": EnvSpec(17, (-1.0,) * 6, (1.0,) * 6, (Budget(25.0),), 1000),
    "crooked": EnvSpec(5, (-1.0, -2.0), (1.0, 3.0), (Budget(3.0),), 20),
}
CASES = [(task, "algd") for task in SPECS] + [
    ("DiffDrive", "algd-paper"),
    ("PointButton1", "algd-plain"),
    ("crooked", "cal"),
    ("crooked", "ppo-lag"),
    ("DiffDrive", "hj"),
]
ROWS = 1_000
OURS = (ROOT / "src", ROOT / "tests")
QUICK = {"xla_llvm_disable_expensive_passes": True, "xla_backend_optimization_level": 0}


class Case:
    """One policy with what the library does at random observations, and the noise it drew."""

    def __init__(self, task, name):
        self.policy = scattered(name, SPECS[task])
        size = self.policy.spec.obs_size
        self.rows = np.random.default_rng(2).normal(0.0, 2.0, (ROWS, size)).astype(np.float32)
        self.key = jax.random.key(3)
        self.keys = jax.random.split(self.key, ROWS)
        self.sampled, self.certain, self.objective = self.library()
        shape = self.policy.portable.data.noise_shape
        self.noise = np.asarray(jax.vmap(lambda key: jax.random.normal(key, shape))(self.keys))
        self.draws_always = name in ("algd", "algd-paper")

    def library(self):
        algorithm, state = self.policy.algorithm, self.policy.state

        def one(obs, key):
            sampled = algorithm.act(state, obs, key, "sampled")[0]
            certain = algorithm.act(state, obs, key, "deterministic")[0]
            ranks = isinstance(algorithm, RanksActions)
            return sampled, certain, algorithm.objective(state, obs, sampled) if ranks else None

        found = jax.jit(jax.vmap(one), compiler_options=QUICK)(self.rows, self.keys)
        return jax.tree.map(np.asarray, found)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    return Case(*request.param)


def close(ours, library):
    assert ours.shape == library.shape
    assert np.abs(ours - library).max() < 1e-5


def test_numpy_gives_the_librarys_actions(case):
    policy = case.policy.portable
    close(policy.from_noise(case.rows, case.noise), case.sampled)
    # Random parameters must not drive everything to the corners of the box.
    assert np.std(case.sampled) > 0.05
    if not case.draws_always:
        close(policy.predict(case.rows), case.certain)
        one_by_one = np.stack([policy.predict(row) for row in case.rows[:50]])
        close(one_by_one, case.certain[:50])
        close(case.policy.predict(case.rows[7]), case.certain[7])


def test_numpy_gives_the_librarys_best_of_four():
    case = Case("DiffDrive", "algd")
    policy, shape = case.policy.portable, (4, *case.policy.portable.data.noise_shape)
    noise = jax.vmap(lambda key: jax.random.normal(key, shape))(case.keys)
    ours = policy.best_from_noise(case.rows, np.asarray(noise).reshape(-1, *shape[1:]))
    # Of two that are equally good to rounding another processor may take the other.
    others = np.abs(ours - case.certain).max(axis=1) > 1e-5
    assert others.mean() < 0.02
    assert policy.data.critics is not None
    energies = [policy.data.critics(case.rows[others], x[others]) for x in (ours, case.certain)]
    np.testing.assert_allclose(*energies, rtol=1e-5, atol=1e-5)
    assert np.abs(ours - case.sampled).max() > 0.1
    # What `predict` is asked for without a word about it.
    again = type(policy)(policy.data, seed=3).generator.standard_normal((4 * 9, *shape[1:]), "f4")
    best = policy.best_from_noise(case.rows[:9], again)
    close(type(policy)(policy.data, seed=3).predict(case.rows[:9]), best)
    assert policy.predict(case.rows[:0]).shape == (0, 2)


def test_numpy_chooses_the_librarys_best(case):
    data = case.policy.portable.data
    if data.critics is None:
        with pytest.raises(ValueError, match="no critic"):
            case.policy.portable.predict(case.rows, "best")
        with pytest.raises(UserError, match="no critic of actions"):
            case.policy.predict(case.rows[0], mode="best")
        return
    ranks = data.critics(case.rows, case.sampled)
    np.testing.assert_allclose(ranks, case.objective, rtol=1e-4, atol=1e-4)
    rows = case.rows[:20]
    drawn, best = (case.policy.portable.predict(rows, mode) for mode in ("sampled", "best"))
    assert data.critics(rows, best).mean() < data.critics(rows, drawn).mean()


def test_onnx_gives_the_librarys_actions(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    case.policy.export(tmp_path / "out", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "policy_sampled.onnx")
    (action,) = session.run(None, {"observation": case.rows, "noise": case.noise})
    close(action, case.sampled)
    assert (tmp_path / "out" / "policy.onnx").exists() != case.draws_always
    if not case.draws_always:
        session = onnxruntime.InferenceSession(tmp_path / "out" / "policy.onnx")
        (action,) = session.run(None, {"observation": case.rows})
        close(action, case.certain)
        with pytest.raises(Exception, match=r"[Ii]nvalid dimensions|INVALID_ARGUMENT"):
            session.run(None, {"observation": case.rows[:, 1:]})


@pytest.mark.parametrize(
    ("task", "name"),
    [("DiffDrive", "algd"), ("PointButton1", "algd-plain"), ("HalfCheetahVelocity", "ppo-lag")],
)
def test_stablehlo_gives_the_librarys_actions(task, name, tmp_path):
    case = Case(task, name)
    case.policy.export(tmp_path / "out", "stablehlo")
    read = lambda file: jax.export.deserialize((tmp_path / "out" / file).read_bytes())  # noqa: E731
    drawn, keys = read("policy_sampled.stablehlo"), np.asarray(jax.random.key_data(case.keys))
    close(np.asarray(drawn.call(case.rows, keys)), case.sampled)
    with pytest.raises(ValueError, match="shape"):
        drawn.call(case.rows[:, 1:], keys)
    assert (tmp_path / "out" / "policy.stablehlo").exists() != case.draws_always
    if not case.draws_always:
        close(np.asarray(read("policy.stablehlo").call(case.rows)), case.certain)


def test_the_numpy_files_need_numpy_alone(tmp_path):
    policy = scattered("algd", SPECS["PointButton1"])
    written = policy.export(tmp_path / "out")
    assert {path.name for path in written} == {"policy.npz", "numpy_policy.py", "README.md"}
    rows = np.random.default_rng(0).normal(size=(5, 76)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    program = """
import sys
for name in ("jax", "algd", "equinox"):
    sys.modules[name] = None
import numpy as np
from numpy_policy import NumpyPolicy
policy = NumpyPolicy.load("policy.npz", seed=5)
rows = np.load("../rows.npy")
best = policy.predict(rows[0], mode="best", candidates=8)
np.save("../actions.npy", np.vstack([policy.predict(rows), best]))
try:
    policy.predict(rows[:, 1:])
except ValueError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "out", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "76 numbers" in done.stdout
    here = NumpyPolicy(policy.portable.data, seed=5)
    best = here.predict(rows[0], mode="best", candidates=8)
    # The same program, but BLAS may order the sums of single precision in another way.
    np.testing.assert_allclose(
        np.load(tmp_path / "actions.npy"), np.vstack([here.predict(rows), best]), atol=1e-6
    )


WRITE_ALL = f"""
from support.scattered import scattered
from algd.types import Budget, EnvSpec, UserError

policy = scattered("algd-plain", {SPECS["crooked"]})
for form in ("numpy", "onnx", "stablehlo"):
    try:
        policy.export(form, form)
    except UserError as error:
        print(error)
"""
FORMS = ("numpy", "onnx", "stablehlo")


@pytest.fixture(scope="module")
def written_with_the_extra(tmp_path_factory):
    """All three forms, written where the extra `export` and nothing more is installed."""
    folder = tmp_path_factory.mktemp("extra")
    shown = run_alone(WRITE_ALL, requirements("export"), folder, *OURS)
    assert shown == ""
    return folder


def test_the_extra_is_enough_to_write_all_forms(written_with_the_extra):
    files = {path.name for path in written_with_the_extra.glob("*/policy*")}
    assert files == {
        "policy.npz",
        *(f"policy{kind}.{form}" for kind in ("", "_sampled") for form in FORMS[1:]),
    }


def test_without_the_extra_it_is_named_and_nothing_is_written(tmp_path):
    shown = run_alone(WRITE_ALL, requirements(), tmp_path, *OURS)
    assert shown.splitlines() == [
        f"{name} needs an extra package: pip install 'algd[export]'"
        for name in ("ONNX", "StableHLO")
    ]
    assert [(tmp_path / form).exists() for form in FORMS] == [True, False, False]


@pytest.mark.parametrize(
    ("form", "needs", "usage"),
    [
        ("numpy", ["numpy"], "observation = rows"),
        ("onnx", ["onnxruntime"], ""),
        ("stablehlo", ["jax", "flatbuffers"], ""),
    ],
)
def test_what_the_readme_says_is_enough_to_read(
    form, needs, usage, written_with_the_extra, tmp_path
):
    """The program in the README beside the files runs with what is said there."""
    folder = written_with_the_extra / form
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    rows = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    start = f"import numpy as np\nrows = np.load('rows.npy')\n{usage}\n"
    shown = run_alone(start + code + "print(action.tolist())", needs, tmp_path, tmp_path)
    action, spec = np.array(ast.literal_eval(shown)), SPECS["crooked"]
    assert action.shape == (4, 2)
    assert (action >= np.array(spec.action_low) - 1e-6).all()
    assert (action <= np.array(spec.action_high) + 1e-6).all()
    assert np.std(action) > 0.01


def test_the_readme_states_the_interface(tmp_path):
    policy = scattered("algd", SPECS["crooked"])
    policy.export(tmp_path / "out", "onnx")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "float32 [batch, 5]" in text
    assert "float32 [batch, 4, 2], standard normal" in text
    assert "| lowest action | [-1.0, -2.0] |" in text
    assert "| highest action | [1.0, 3.0] |" in text
    assert re.search(r"latency \| \d+ µs median", text)
    assert "holds" not in text
    assert "no\ndeterministic file" in text
    assert "`policy.onnx`" not in text
    scattered("cal", SPECS["crooked"]).export(tmp_path / "cal", "onnx")
    text = (tmp_path / "cal" / "README.md").read_text()
    assert "`policy.onnx` is deterministic" in text


def test_the_readme_says_where_the_parts_of_an_observation_are(tmp_path):
    layout = (("z", (1,)), ("a", ((2, 1), (("deep", (2,)),))))
    spec = replace(SPECS["crooked"], obs_layout=layout, action_shape=(2, 1))
    scattered("algd", spec).export(tmp_path / "out", "numpy")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "in this order, each row by row: `z` [1], `a[0]` [2, 1], `a[1].deep` [2] |" in text
    assert "| `action` holds | row by row: [2, 1] |" in text


def test_a_policy_survives_its_arrays():
    for name in ("algd", "ppo-lag", "hj"):
        data = scattered(name, SPECS["crooked"]).portable.data
        arrays = flattened(data)
        again = flattened(rebuilt(type(data), arrays))
        assert arrays.keys() == again.keys()
        assert all(np.array_equal(arrays[key], again[key]) for key in arrays)
    with pytest.raises(ValueError, match="no PolicyData"):
        rebuilt(type(data), {"x": np.zeros(3)})


def test_a_nan_is_not_hidden():
    policy = scattered("algd", SPECS["DiffDrive"])
    obs = np.zeros(17)
    obs[3] = np.nan
    with pytest.raises(UserError, match="not a number"):
        policy.predict(obs)
    with pytest.raises(ValueError, match="not a number"):
        policy.portable.predict(obs)


def test_mistakes_are_refused(tmp_path):
    policy = scattered("sac-lag", SPECS["DiffDrive"])
    with pytest.raises(UserError, match=r"numpy, onnx, stablehlo, not 'onx'"):
        policy.export(tmp_path / "a", "onx")
    assert not (tmp_path / "a").exists()
    policy.export(tmp_path / "b")
    before = (tmp_path / "b" / "policy.npz").read_bytes()
    with pytest.raises(UserError, match="exists and is not an empty directory"):
        policy.export(tmp_path / "b")
    assert (tmp_path / "b" / "policy.npz").read_bytes() == before
    with pytest.raises(SystemExit) as stop:
        main(["export", str(tmp_path / "nothing"), "--out", str(tmp_path / "c")])
    assert stop.value.code == 2
