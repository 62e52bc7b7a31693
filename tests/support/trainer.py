"""A run in progress, as tests of checkpoints handle it."""

import dataclasses

import numpy as np

from algd.runs.checkpoint import read_checkpoint, to_arrays
from algd.runs.config import make_envs, parse_config
from algd.training.checkpointing import load as load_state
from algd.training.checkpointing import load_newest, save
from algd.training.state import Setup, start
from algd.training.steps import iterate
from algd.types import UserError


class Trainer:
    """A run in progress with its state, which is replaced by every call."""

    def __init__(self, settings, algorithm, run):
        self.envs = make_envs(settings, settings.envs)
        self.setup = Setup(settings, algorithm, self.envs.spec, (run,))
        self.state = None

    def of(self, run):
        self.setup = dataclasses.replace(self.setup, runs=(run,))
        return self

    def start(self):
        self.state = start(self.setup, [self.envs])
        return self

    def load(self, path):
        self.state, _ = load_state(self.setup, self.envs, read_checkpoint(self.setup.runs[0], path))

    def load_newest(self):
        self.state, position, notes = load_newest(self.setup, self.envs)
        return position, notes

    def iterate(self, times):
        for _ in range(times):
            self.state = iterate(self.setup, self.state)

    def save(self, position):
        self.state = save(self.setup, self.state, [position])

    def at_step(self, step):
        self.state = self.state._replace(counters=self.state.counters._replace(step=step))


def trainer_of(run):
    settings, algorithm, _ = parse_config(run.config())
    return Trainer(settings, algorithm, run)


def contents(trainer):
    """Everything that the future depends on, as bytes."""
    parts = trainer.state._asdict()
    del parts["envs"], parts["key"], parts["metrics"]
    arrays = {**to_arrays(parts), **trainer.envs.save_state()}
    return {name: np.asarray(x).tobytes() for name, x in arrays.items()}


def outcome(work, *arguments):
    """What a call gives, and what it says to the user if it refuses."""
    try:
        return work(*arguments), None
    except UserError as error:
        return None, str(error)
