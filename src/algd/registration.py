"""Our tasks in Gymnasium's registry, from the moment that both packages are imported.

Only names: an entry point is imported when its environment is made.
"""

import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAMESPACE = "algd"
SAFETY_GYM_TASKS = ("PointButton1", "PointButton2", "CarButton1", "CarButton2", "PointPush1")
VELOCITY_TASKS = (
    "HalfCheetahVelocity",
    "HopperVelocity",
    "AntVelocity",
    "HumanoidVelocity",
    "HalfCheetahVelocityIndicator",
    "HopperVelocityIndicator",
    "AntVelocityIndicator",
    "HumanoidVelocityIndicator",
    "Walker2dVelocityIndicator",
    "SwimmerVelocityIndicator",
)


def register() -> None:
    """Register every task: ``algd/DiffDrive-v0``, ``algd/PointButton1Random-v0``, ...

    The tasks end their episodes themselves (a saved state includes the clock), hence none has
    Gymnasium's ``max_episode_steps``.
    """
    _register("DiffDrive", "diff_drive:DiffDriveEnv", "diff_drive:DiffDriveVectorEnv")
    for task in VELOCITY_TASKS:
        _register(task, "velocity:VelocityEnv", "velocity:velocity_vector_env", task=task)
    one, many = "safety_gym.env:SafetyGymEnv", "safety_gym.env:SafetyGymVectorEnv"
    for task in SAFETY_GYM_TASKS:
        _register(task, one, many, task=task, layout="fixed")
        _register(f"{task}Random", one, many, task=task, layout="random")


def _register(name: str, one: str, many: str, **options: str) -> None:
    import gymnasium

    gymnasium.register(
        f"{NAMESPACE}/{name}-v0",
        entry_point=f"algd.envs.{one}",
        vector_entry_point=f"algd.envs.{many}",
        kwargs=options,
    )


class AfterGymnasium:
    """Registers the tasks behind the import of Gymnasium, whoever comes to import it.

    To import it here would take the command line's help many times as long, and start NumPy's
    threads before a run of a sweep is bound to its cores.
    """

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Gymnasium's own, with one more thing to do at the end."""
        if name != "gymnasium":
            return None
        # Who only asks where it is must not use the hook up: it goes when the module is there.
        with suppress(ValueError):
            sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    register()

            loader.exec_module = execute_and_register
        return spec


def register_when_possible() -> None:
    """Now, if Gymnasium is imported already."""
    if "gymnasium" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, AfterGymnasium())
