"""An agent: a preset on an environment that learns, acts, is judged and saved."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from algd import api
from algd.cli.progress import progress_line
from algd.envs import CostFunction, EnvLike, registered
from algd.evaluation.acting import CANDIDATES
from algd.evaluation.observations import refuse_pair
from algd.evaluation.policy import Forecast, Policy, policy_of
from algd.evaluation.policy import load as load_policy
from algd.runs.checkpoint import Which, read_snapshot
from algd.runs.config import Given, parse_config
from algd.runs.directory import Run
from algd.runs.validation import fitted
from algd.training import loop
from algd.training.loop import Callback
from algd.types import BudgetLike, Choice, Number, UserError, nearest


class Agent:
    """A preset on an environment.

    `env`, `budget`, `cost_function`, `start_from` and `options` (settings of the run and
    hyperparameters) are those of `algd.train`. All that the agent has learnt is in the directory of
    its `run`, on which every command works; `out` says where that is.
    """

    def __init__(
        self,
        algorithm: str | None = None,
        env: EnvLike | None = None,
        *,
        budget: BudgetLike = (),
        cost_function: CostFunction | None = None,
        out: str | Path | None = None,
        start_from: str | Path | Run | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(algorithm, str | None):
            raise UserError(
                f"The first word is a preset, not {algorithm!r:.80}: Agent('algd', env)."
            )
        if algorithm is not None and registered(algorithm):
            raise UserError(f"{algorithm} is an environment: Agent('algd', {algorithm!r}).")
        self._source = None if start_from is None else read_snapshot(start_from)
        plan = api.planned(env, algorithm, budget, cost_function, options, self._source)
        self._plan, self.given, self.trust, self._out = plan, plan.given, False, out
        self.seed = plan.settings.seed
        self._run: Run | None = None
        self._policy: Policy | None = None

    @classmethod
    def of(cls, run: Run, policy: Policy, given: Given, trust: bool) -> "Agent":
        """The agent of a run that is there."""
        assert policy.source is not None
        settings, algorithm, preset = parse_config(policy.source.config)
        agent = cls.__new__(cls)
        agent._source, agent._plan = None, api.Plan(settings, algorithm, preset, given)
        agent._out, agent._run, agent._policy = None, run, policy
        agent.given, agent.trust, agent.seed = given, trust, policy.seed
        return agent

    @property
    def run(self) -> Run:
        """The run directory; it is begun when it is first asked for."""
        if self._run is None:
            # One that stops at once: the first checkpoint is there, and the first evaluation.
            self._train(1, loop.nothing, [lambda event: False], draw=False)
        assert self._run is not None
        return self._run

    @property
    def policy(self) -> Policy:
        """What the agent does now."""
        if self._policy is None:
            self._policy = policy_of(read_snapshot(self.run), self.seed)
        return self._policy

    def learn(
        self,
        steps: Number | None = None,
        *,
        callback: Callback | Sequence[Callback] | None = (),
        progress: bool = False,
        **habits: Any,
    ) -> "Agent":
        """Learn for so many more environment steps, by default those of the settings.

        A `callback`, or each of several, is called with every row of metrics and every evaluation;
        its answer `False` stops with everything saved. `progress` shows a line on the terminal.
        """
        for name in habits:
            known = ("steps", "callback", "progress")
            raise UserError(f"Agent.learn takes no {name}.{nearest(name, known)}")
        more = fitted(self._plan.settings.steps if steps is None else steps, int)
        callbacks = api.several(callback)
        self._policy = None
        with progress_line(not progress) as report:
            if self._run is None:
                self._train(more, report, callbacks)
            else:
                checkpoints = self._run.checkpoints()
                if not checkpoints:
                    raise UserError(f"{self._run.directory} has nothing to go on from.")
                reached = checkpoints[-1][0]
                api.resume(
                    self._run,
                    reached + more,
                    report,
                    env=self.given.env,
                    trust=self.trust,
                    callback=callbacks,
                    cost_function=self.given.cost_function,
                )
        return self

    def _train(
        self, steps: int, report: loop.Report, callbacks: Sequence[Callback], draw: bool = True
    ) -> None:
        plan = self._plan
        settings = dataclasses.replace(plan.settings, steps=steps)
        out = (
            Path(self._out) if self._out is not None else api.free_directory(settings, plan.preset)
        )
        train = api.run_to_end if draw else loop.train
        arguments = (settings, plan.algorithm, plan.preset, out, report, self._source, plan.given)
        begun = (out / "config.json").exists()
        try:
            train(*arguments, callbacks)
        finally:
            # Also one that was stopped can be gone on with; one that was there is somebody else's.
            if not begun and (out / "config.json").exists():
                self._run = Run(out)

    @overload
    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        mode: Choice | None = None,
        candidates: Number = CANDIDATES,
        return_info: Literal[False] = False,
    ) -> np.ndarray: ...

    @overload
    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        mode: Choice | None = None,
        candidates: Number = CANDIDATES,
        return_info: Literal[True],
    ) -> tuple[np.ndarray, Forecast]: ...

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        mode: Any = None,
        candidates: Number = CANDIDATES,
        return_info: Any = False,
    ) -> np.ndarray | tuple[np.ndarray, Forecast]:
        """The action for an observation or a batch of them, as `Policy.predict` returns it: alone,
        without a state."""
        if not return_info:
            refuse_pair(self.policy.called_at)
        return self.policy.predict(
            obs, deterministic, mode=mode, candidates=candidates, return_info=return_info
        )

    def evaluate(
        self,
        episodes: Number = 100,
        *,
        seed: Number = 12345,
        mode: Choice = "deterministic",
        candidates: Number = CANDIDATES,
    ) -> dict[str, Any]:
        """Returns and costs of fresh episodes, as `algd.evaluate` gives them."""
        return api.evaluate(self, episodes, seed=seed, mode=mode, candidates=candidates)

    def export(self, directory: str | Path, form: str = "numpy") -> list[Path]:
        """Write the policy as `numpy`, `onnx` or `stablehlo` into a new directory."""
        return self.policy.export(directory, form)

    def save(self, path: str | Path) -> Run:
        """Copy the run with all of its checkpoints to a new directory, from which `algd.load` makes
        the agent again; which of them acts is said there, by default the newest."""
        place = Path(path)
        if place.exists():
            raise UserError(f"{place} exists already: choose another directory.")
        ignored = shutil.ignore_patterns("lock", "*.part")
        try:
            shutil.copytree(self.run, place, ignore=ignored)
        except OSError as error:
            raise UserError(f"Cannot write to {place}: {error.strerror}.") from error
        return Run(place)


def load(
    run: str | Path | Run,
    checkpoint: Which = "last",
    *,
    seed: Number = 0,
    env: EnvLike | None = None,
    cost_function: CostFunction | None = None,
    trust: bool = False,
) -> Agent:
    """The agent of a run, which acts like its newest checkpoint, that of its `best` evaluation, or
    that of a step; it learns on from the newest.

    To learn and to be evaluated it needs the run's environment: `env` and `trust` are those of
    `algd.resume`.
    """
    place = Run(Path(run))
    policy = load_policy(place, checkpoint, seed=seed)
    return Agent.of(place, policy, Given(env, cost_function), trust)
