"""Training from Python with the words of the command line."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from algd.algorithms import canonical_preset, preset
from algd.envs import THERE, CostFunction, EnvLike, find, is_found_again, name_of
from algd.envs.requirements import check_budget, with_new_limits
from algd.evaluation.acting import CANDIDATES
from algd.evaluation.episodes import evaluate as roll_out
from algd.evaluation.policy import Policy, load
from algd.evaluation.stats import summarise
from algd.runs.checkpoint import Snapshot, Which, read_snapshot
from algd.runs.config import (
    NOTHING_MORE,
    Given,
    Settings,
    check_imported,
    close,
    is_another_task,
    make_envs,
    with_environment,
    written_options,
)
from algd.runs.directory import Run, directory_name
from algd.runs.grouping import gather
from algd.runs.validation import check_effect, fitted, fitted_fields
from algd.training import loop
from algd.training.loop import Callback, Report
from algd.training.warm_start import check_same_spaces
from algd.types import (
    Algorithm,
    Budget,
    BudgetLike,
    Choice,
    Count,
    Number,
    UserError,
    budgets_of,
    nearest,
)


def train(
    env: EnvLike | None = None,
    algorithm: str | None = None,
    *,
    out: str | Path | None = None,
    budget: BudgetLike = (),
    cost_function: CostFunction | None = None,
    start_from: str | Path | Run | None = None,
    callback: Callback | Sequence[Callback] | None = (),
    report: Report = loop.nothing,
    **options: Any,
) -> Run:
    """Train a preset (`algd` on DiffDrive, if nothing else is said) and return the run.

    `env` is an id, `module:Name`, a Gymnasium class, a function that makes an environment, a spec,
    an environment or a `VectorEnv`. The `budget` is a number, or one for each constraint as a list,
    an array or a dictionary by name; a `Budget` may stand for a number. `cost_function(obs, action,
    next_obs, info)` gives the cost of an environment that reports none, or another one.

    `options` are settings of the run (`steps`, `seed`, `envs`, ...) and hyperparameters of the
    preset (`rho`, `beta`, ...), under the names that `algd train PRESET --help` shows. With
    `start_from` the networks are those of another run; task and algorithm are then that run's,
    where nothing else is said. A `callback`, or each of several, is called with every row of
    metrics and every evaluation; its answer `False` stops the run with everything saved.
    """
    callbacks = several(callback)
    source = read_snapshot(start_from) if start_from is not None else None
    settings, chosen, name, given = planned(env, algorithm, budget, cost_function, options, source)
    return run_to_end(settings, chosen, name, out, report, source, given, callbacks)


class Plan(NamedTuple):
    """What is to be trained."""

    settings: Settings
    algorithm: Any
    preset: str
    given: Given


def planned(
    env: EnvLike | None,
    algorithm: str | None,
    budget: BudgetLike,
    cost_function: CostFunction | None,
    options: Mapping[str, Any],
    source: Snapshot | None = None,
) -> Plan:
    """Settings and hyperparameters from the words of Python; a mistake is answered with names."""
    defaults, name, chosen = defaults_of(source, None if env is None else name_of(env), algorithm)
    if env is None:
        check_imported(defaults.env)
    else:
        # What is no environment is refused now, not when it is asked for one.
        find(env)
    budgets = budgets_of(budget)
    of_run = {field.name for field in dataclasses.fields(Settings)}
    of_preset = {field.name for field in dataclasses.fields(chosen)}
    known = of_run | of_preset
    for option in options:
        if option not in known:
            hint = " The preset is `algorithm`." if option == "preset" else nearest(option, known)
            raise UserError(f"There is no setting {option!r}.{hint}")
    for budget in budgets:
        check_budget(defaults.env, budget)
    if isinstance(options.get("env_options"), Mapping):
        options = {**options, "env_options": written_options(options["env_options"])}
    given = fitted_fields(Settings, {k: v for k, v in options.items() if k in of_run})
    if budgets:
        given["budget"] = tuple(each.limit for each in budgets)
    if isinstance(env, THERE):
        if given.get("eval_envs"):
            raise UserError(f"{name_of(env)} has all the copies there are: eval_envs must be 0.")
        given = {"envs": getattr(env, "num_envs", 1), **given, "eval_envs": 0}
    settings = dataclasses.replace(defaults, **given)
    if settings.discounted_budget:
        budgets = tuple(dataclasses.replace(each, discounted=True) for each in budgets)
    budgets = budgets or budgets_kept(source, settings)
    own = fitted_fields(type(chosen), {k: v for k, v in options.items() if k in of_preset})
    changed = dataclasses.replace(chosen, **own)
    check_effect(chosen, changed)
    thing = None if isinstance(env, str) else env
    needed = Given(thing, cost_function, budgets)
    if not is_found_again(settings.env if thing is None else thing) or needed.unnamed:
        warnings.warn(
            f"No other process finds {settings.env}{' with this cost' * bool(cost_function)} by "
            "its name: algd resume, evaluate and render will need it again, as --env module:Name "
            f"(in Python: {', '.join(f'{word}=...' for word in needed.unnamed) or 'env=...'}).",
            stacklevel=3,
        )
    return Plan(settings, changed, name, needed)


def budgets_kept(source: Snapshot | None, settings: Settings) -> tuple[Budget, ...]:
    """The source's budgets with their names, where their limits are taken over: limits alone would
    go by position, and be sums."""
    if source is None or not settings.budget:
        return ()
    same = (settings.env, settings.budget) == (source.settings.env, source.settings.budget)
    return source.spec.budgets if same else ()


def several(callback: Any) -> Sequence[Callback]:
    """Callbacks of which one may be given alone, or none; what cannot be called is refused before
    anything is written."""
    found: list[Any] = [callback]
    if callback is None or isinstance(callback, Sequence):
        found = list(callback or ())
    for one in found:
        if not callable(one):
            raise UserError(
                f"A callback is a function of one event (docs/own_problem.md), not {one!r:.80}."
            )
    return found


def defaults_of(
    source: Snapshot | None, env: str | None = None, algorithm: str | None = None
) -> tuple[Settings, str, Any]:
    """Settings, preset and algorithm where nothing is said: the source's task and algorithm.

    Another task has a budget and options of its own; another preset its own hyperparameters.
    """
    if source is None:
        name = canonical_preset(algorithm or "algd")
        return Settings(env=env or Settings.env), name, preset(name)
    settings = Settings(env=env or source.settings.env)
    if env in (None, source.settings.env):
        task = ("budget", "discounted_budget", "horizon", "env_options")
        kept = {field: getattr(source.settings, field) for field in task}
        settings = dataclasses.replace(settings, **kept)
    name = source.preset if algorithm is None else canonical_preset(algorithm)
    return settings, name, source.algorithm if name == source.preset else preset(name)


def run_to_end(
    settings: Settings,
    algorithm: Algorithm,
    name: str,
    out: str | Path | None,
    report: Report,
    start_from: Snapshot | None = None,
    given: Given = NOTHING_MORE,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train and draw the curves, also of a run that a signal has cut short."""
    directory = Path(out) if out is not None else free_directory(settings, name)
    with drawn([directory]):
        return loop.train(
            settings, algorithm, name, directory, report, start_from, given, callbacks
        )


def run_seeds_to_end(
    settings: Settings,
    algorithm: Algorithm,
    name: str,
    seeds: Sequence[int],
    out: str | Path | None,
    report: Report,
) -> list[Run]:
    """Train several seeds in one program, each in a directory of its own, and draw their curves."""
    each = [dataclasses.replace(settings, seed=seed) for seed in seeds]
    directories = [
        Path(out) / f"seed{mine.seed}" if out is not None else free_directory(mine, name)
        for mine in each
    ]
    with drawn(directories):
        return loop.train_seeds(each, algorithm, name, directories, report)


@contextmanager
def drawn(directories: Sequence[Path]) -> Iterator[None]:
    """Draw the runs that are begun inside, however they end; one that was there before is not
    touched."""
    new = [run for run in map(Run, directories) if not run.config_path.exists()]
    try:
        yield
    finally:
        for run in new:
            draw(run)


def resume(
    run: str | Path | Run,
    steps: Number | None = None,
    report: Report = loop.nothing,
    tell: Callable[[str], None] = lambda note: None,
    env: EnvLike | None = None,
    trust: bool = False,
    callback: Callback | Sequence[Callback] | None = (),
    cost_function: CostFunction | None = None,
) -> tuple[Run, list[str]]:
    """Continue a run, up to `steps` in all if given; the second value is what to know of it, which
    `tell` is given before the run goes on.

    If the run's environment is in a module that you have not imported, name it by `env`, as
    "module:Name", or say that you `trust` what the run's files name. One that cannot be named, and
    a `cost_function`, are given as they were to `train`.
    """
    directory = Path(run)
    # What cannot be continued is not drawn either.
    Run(directory).config()
    given, callbacks = Given(env, cost_function), several(callback)
    try:
        return loop.resume(directory, fitted(steps, int), report, tell, given, trust, callbacks)
    finally:
        draw(Run(directory))


@runtime_checkable
class Acting(Protocol):
    """What has a policy and knows its environment: an agent."""

    given: Given
    trust: bool

    @property
    def policy(self) -> Policy:
        """What it does."""
        ...


def evaluate(
    run: str | Path | Run | Policy | Acting,
    episodes: Number = 100,
    *,
    checkpoint: Which | None = None,
    seed: Number = 12345,
    mode: Choice = "deterministic",
    candidates: Number = CANDIDATES,
    env: EnvLike | None = None,
    cost_function: CostFunction | None = None,
    trust: bool = False,
    env_options: Mapping[str, Any] | Sequence[str] = (),
    budget: BudgetLike = (),
    horizon: Number | None = None,
    eval_envs: Number | None = None,
    bad_steps: Literal["stop", "drop"] | None = None,
) -> dict[str, Any]:
    """Roll out the policy of a run, of an agent, or one that was loaded, on fresh environments:
    returns and costs with their standard errors, as `algd evaluate --json` prints them.

    Of a run's directory it is that of its `checkpoint`, by default the newest. `env` is another
    task than the run's, with the same spaces and constraints, or says where the run's own is found,
    or is it. `eval_envs` is the most copies that are made of it.
    """
    asked = {"episodes": episodes, "candidates": candidates, "seed": seed, "mode": mode}
    asked |= {"horizon": horizon, "eval_envs": eval_envs}
    asked = fitted_fields(Evaluation, {k: v for k, v in asked.items() if v is not None})
    if isinstance(run, Policy | Acting) and checkpoint is not None:
        raise UserError(
            "checkpoint goes with the directory of a run; what is loaded is of one checkpoint: "
            f"algd.load(run, {checkpoint!r})."
        )
    if isinstance(run, Acting):
        env = run.given.env if env is None else env
        cost_function = cost_function or run.given.cost_function
        trust, policy = trust or run.trust, run.policy
    elif isinstance(run, Policy):
        policy = run
    else:
        policy = load(run, "last" if checkpoint is None else checkpoint)
    if policy.source is None:
        raise UserError("This policy is of no run: load it with algd.load.")
    source, given = policy.source, Given(env, cost_function, budgets_of(budget))
    settings, config = source.settings, source.config
    if isinstance(env, str) and is_another_task(env, config):
        # It has a budget of its own.
        limits = tuple(each.limit for each in given.budgets)
        settings = dataclasses.replace(
            settings, env=env, budget=limits, env_options=(), horizon=None, loop=None
        )
        given = Given(cost_function=cost_function)
    else:
        if given.budgets:
            own = with_new_limits(settings.env, policy.spec.budgets, given.budgets)
            given = given._replace(budgets=own)
        settings, given = with_environment(config, given, trust)
    options = {"env_options": written_options(env_options), "bad_steps": bad_steps}
    options |= {name: asked.get(name) for name in ("horizon", "eval_envs")}
    settings = dataclasses.replace(settings, **{k: v for k, v in options.items() if v})
    copies = min(asked["episodes"], max(settings.eval_envs, 1))
    environments = make_envs(settings, copies, given)
    try:
        spec = environments.spec
        check_same_spaces(str(source.directory), policy.spec, settings.env, spec)
        found = roll_out(
            policy.algorithm,
            policy.state,
            environments,
            asked["episodes"],
            asked["seed"],
            mode,
            policy.algorithm.cost_discount,
            asked["candidates"],
            settings.bad_steps,
        )
    finally:
        close(environments)
    return {
        "run": str(source.directory),
        "preset": source.preset,
        "env": settings.env,
        "mode": mode,
        "step": source.step,
        "steps": source.settings.steps,
        "constraints": [each.name for each in spec.budgets],
        **summarise(found, spec),
    }


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What is asked of an evaluation, and where it may lie."""

    episodes: int
    candidates: int
    seed: Count
    mode: Choice
    horizon: int = 1
    eval_envs: int = 1


def draw(run: Run) -> None:
    """Leave `curves.png` in the run directory, if there is anything to draw."""
    if not (run.metrics_path.exists() and run.metrics_path.stat().st_size):
        return
    # Matplotlib takes half a second to load, which a start should not wait for.
    from algd.visualization.curves import plot_tasks

    try:
        tasks, complaints = gather([run.directory], unfinished=True)
        if complaints:
            raise UserError(complaints[0])
        plot_tasks(tasks, run.directory / "curves.png")
    except (OSError, UserError) as error:
        # A picture must not hide what became of the run.
        warnings.warn(f"The curves could not be drawn: {error}", stacklevel=2)


def free_directory(settings: Settings, name: str) -> Path:
    """`runs/ENV-PRESET-SEED`, with a number behind it where that is taken."""
    stem = directory_name(f"{settings.env}-{name}-seed{settings.seed}")
    path, number = Path("runs") / stem, 2
    while path.exists():
        path, number = Path("runs") / f"{stem}-{number}", number + 1
    return path
