"""The paper's five Safety-Gym tasks on today's MuJoCo and Gymnasium."""

import gymnasium

NAMESPACE = "algd"
TASK_NAMES = ("PointButton1", "PointButton2", "CarButton1", "CarButton2", "PointPush1")


def register() -> None:
    """Make the tasks known to Gymnasium: ``algd/PointButton1-v0``, ``...1Random-v0``, ...

    The entry points are strings, so MuJoCo is imported only when an environment is made. The
    environments end their own episodes; no time limit is wrapped around them.
    """
    for name in TASK_NAMES:
        for suffix, layout in (("", "fixed"), ("Random", "random")):
            env_id = f"{NAMESPACE}/{name}{suffix}-v0"
            if env_id in gymnasium.registry:
                continue
            gymnasium.register(
                env_id,
                entry_point="algd.envs.safety_gym.env:SafetyGymEnv",
                vector_entry_point="algd.envs.safety_gym.env:SafetyGymVectorEnv",
                kwargs={"task": name, "layout": layout},
            )
