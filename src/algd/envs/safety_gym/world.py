"""The logic of the tasks: many copies of one task as arrays, stepped and reset together."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

from typing import Any, NamedTuple

import mujoco
import numpy as np
from jaxtyping import Bool, Float, Int

from algd.envs.adapters import generator_state, restored_generator
from algd.envs.safety_gym.layout import Layout, draw_layout, members, redraw
from algd.envs.safety_gym.lidar import BINS, lidar_cells, pseudo_lidar
from algd.envs.safety_gym.physics import Physics
from algd.envs.safety_gym.scene import FREE_KINDS, compile_scene
from algd.envs.safety_gym.tasks import (
    BUTTON_RADIUS,
    BUTTON_TIMER,
    GOAL_HEIGHT,
    GOAL_RADIUS,
    GREMLIN_HALF_SIZE,
    HORIZON,
    PILLAR_RADIUS,
    LayoutName,
    Task,
)

# The engine of the paper draws every layout from this seed, whatever seed it is given.
PAPER_SEED = 0
LARGEST_REWARD = 10.0
REWARD_OF_DIVERGENCE = -10.0
# How far from zero the margin of a contact is kept on the side where its cost says it is: contact
# is a matter of exact shapes, while the margin is measured between circles.
CONTACT_MARGIN = 0.01
RADIUS = {"button": BUTTON_RADIUS, "gremlin": GREMLIN_HALF_SIZE, "pillar": PILLAR_RADIUS}
LIDAR_NAMES = {
    "box": "box_lidar",
    "button": "buttons_lidar",
    "goal": "goal_lidar",
    "gremlin": "gremlins_lidar",
    "hazard": "hazards_lidar",
    "pillar": "pillars_lidar",
}

# What a saved state holds beside physics and generators, by attribute.
STATE = (
    *("layouts", "places", "goal_button", "timer", "steps", "distances", "last_costs"),
    "words_due",
)


class Outcome(NamedTuple):
    """What one step led to in every copy, before any copy is reset."""

    obs: Float[np.ndarray, "copies obs"]
    reward: Float[np.ndarray, " copies"]
    costs: Float[np.ndarray, "copies parts"]
    margins: Float[np.ndarray, "copies parts"]
    goal_met: Bool[np.ndarray, " copies"]
    diverged: Bool[np.ndarray, " copies"]
    terminated: Bool[np.ndarray, " copies"]
    truncated: Bool[np.ndarray, " copies"]


class Offsets(NamedTuple):
    """From each robot to all objects that lidar sees, on the floor."""

    x: Float[np.ndarray, "copies objects"]
    y: Float[np.ndarray, "copies objects"]
    length: Float[np.ndarray, "copies objects"]


class Start(NamedTuple):
    """How every episode of the fixed layout begins; ``words`` is what its drawing used up."""

    layout: Float[np.ndarray, "all_objects 3"]
    places: Float[np.ndarray, "objects 2"]
    goal_button: int
    distances: Float[np.ndarray, " terms"]
    obs: Float[np.ndarray, " obs"]
    words: int


class World:
    """Copies of one task. ``places`` are all objects that lidar sees, kind after kind."""

    def __init__(self, task: Task, layout: LayoutName, copies: int, threads: int):
        self.task = task
        self.layout_name: LayoutName = layout
        self.groups = task.groups(layout)
        # Every model is compiled for the paper's layout, and moved from there if need be.
        self.generators = [np.random.RandomState(PAPER_SEED) for _ in range(copies)]
        paper_layout = draw_layout(task.fixed, self.generators[0])
        model = compile_scene(task, paper_layout)
        self.physics = Physics(task, model, copies, threads, own_layouts=layout == "random")
        self._find_sensors(model)

        kinds = [kind for kind in LIDAR_NAMES if kind == "goal" or task.count(kind)]
        counts = [1 if kind == "goal" else task.count(kind) for kind in kinds]
        starts = np.concatenate([[0], np.cumsum(counts)])
        self.rows = {k: slice(a, a + n) for k, a, n in zip(kinds, starts, counts, strict=False)}
        self.lidar_kinds = kinds
        self._group_starts = starts[:-1]
        self._cells = lidar_cells(counts, copies)
        self.components, self._columns = self._order_observation()
        self._copies = np.arange(copies)
        self._moving_rows = next((self.rows[k] for k in FREE_KINDS if k in kinds), slice(0, 0))
        part_kinds = [part.removesuffix("s") for part in task.parts]
        self._part_groups = [kinds.index(kind) for kind in part_kinds]
        self._part_radii = np.array(
            [task.hazard_radius, *(task.robot.reach + RADIUS[kind] for kind in part_kinds[1:])]
        )
        touch_counts = [task.count(kind) for kind in part_kinds[1:]]
        self._touch_starts = np.cumsum([0, *touch_counts[:-1]])

        self.places = np.zeros((copies, int(starts[-1]), 2))
        self.goal_button = np.zeros(copies, np.int64)
        self.timer = np.zeros(copies, np.int64)
        self.steps = np.zeros(copies, np.int64)
        self.distances = np.zeros((copies, 1 if task.goal == "button" else 2))
        self.layouts = np.zeros((copies, len(paper_layout.yaw), 3))
        self.last_costs = np.zeros((copies, len(task.parts)))
        # The engine draws one number at each step, for a frame skip that is always 10, from the
        # generator that also draws the goals. We only count them until there is a goal to draw.
        self.words_due = np.zeros(copies, np.int64)
        self.seeders = [np.random.default_rng(0) for _ in range(copies)]
        self._start = self._draw_start(paper_layout) if layout == "fixed" else None

    @property
    def obs_size(self) -> int:
        """The length of an observation."""
        return len(self._columns)

    def seed(self, i: int, generator: np.random.Generator) -> None:
        """Set the generator that seeds the episodes of one copy in the random layout."""
        self.seeders[i] = generator

    def reset(self, copies: Int[np.ndarray, " chosen"]) -> Float[np.ndarray, "chosen obs"]:
        """Begin new episodes in some copies; give their first observations."""
        self.last_costs[copies] = 0.0
        if self._start is not None:
            for i in copies:
                self._begin_as_always(int(i), self._start)
            self.distances[copies] = self._start.distances
            return np.repeat(self._start.obs[None], len(copies), axis=0)
        for i in copies:
            self.generators[i].seed(int(self.seeders[i].integers(2**32)))
            layout = draw_layout(self.groups, self.generators[i])
            self.physics.rearrange(int(i), layout)
            self._begin(int(i), layout)
        offsets = self._offsets()
        self.distances[copies] = self._distances(offsets)[copies]
        return self._observe(offsets)[copies]

    def _begin_as_always(self, i: int, start: "Start") -> None:
        self.generators[i].seed(PAPER_SEED)
        self.words_due[i] = start.words
        self.layouts[i] = start.layout
        self.places[i] = start.places
        self.goal_button[i] = start.goal_button
        self.steps[i] = self.timer[i] = 0
        self.physics.restart(i)

    def _begin(self, i: int, layout: Layout) -> None:
        """Begin an episode in a layout just drawn by the copy's generator; draw its first goal."""
        self.words_due[i] = 0
        self.layouts[i, :, :2] = layout.xy
        self.layouts[i, :, 2] = layout.yaw
        for group in self.groups:
            if group.kind in self.rows:
                self.places[i, self.rows[group.kind]] = layout.xy[members(self.groups, group.kind)]
        self.steps[i] = self.timer[i] = 0
        self.physics.restart(i)
        # A layout with a goal of its own gets another; should there be no room, it keeps its own.
        self._draw_goal(i)

    def _draw_start(self, layout: Layout) -> "Start":
        """Find out once how all episodes of the fixed layout begin."""
        self._begin(0, layout)
        offsets = self._offsets()
        return Start(
            self.layouts[0].copy(),
            self.places[0].copy(),
            int(self.goal_button[0]),
            self._distances(offsets)[0],
            self._observe(offsets)[0],
            words_drawn(PAPER_SEED, self.generators[0]),
        )

    def step(self, actions: Float[np.ndarray, "copies 2"]) -> Outcome:
        """One environment step of all copies, in the order of the engine."""
        diverged = self.physics.step(np.minimum(np.maximum(actions, -1.0), 1.0))
        self.words_due += 2
        for i in np.flatnonzero(diverged):
            # Nothing of such a copy may be used any more, least of all its numbers.
            self.physics.restart(int(i))
        self._follow()

        offsets = self._offsets()
        distances = self._distances(offsets)
        # One term or two: their sum has one order only.
        progress = np.add.reduce(self.distances - distances, axis=1)
        reward = np.minimum(np.maximum(progress, -LARGEST_REWARD), LARGEST_REWARD)
        self.distances = distances
        costs, margins = self._costs(offsets)
        self.timer = np.maximum(self.timer - 1, 0)
        goal_met = self._goal_met() & ~diverged
        reward += goal_met
        self.steps += 1
        truncated = self.steps >= HORIZON
        if goal_met.any():
            chosen = np.flatnonzero(goal_met)
            for i in chosen:
                # An episode without room for a next goal ends, though nothing went wrong.
                truncated[i] |= not self._draw_goal(int(i))
            if self.task.goal == "button":
                self.timer[chosen] = BUTTON_TIMER
            offsets = self._offsets()
            self.distances[chosen] = self._distances(offsets)[chosen]
        obs = self._observe(offsets)
        if diverged.any():
            obs[diverged] = 0.0
            reward[diverged] = REWARD_OF_DIVERGENCE
            costs[diverged] = 0.0
            margins[diverged] = np.minimum(margins[diverged], 0.0)
            truncated &= ~diverged
        self.last_costs = costs.copy()
        terminated = diverged.copy()
        return Outcome(obs, reward, costs, margins, goal_met, diverged, terminated, truncated)

    def _offsets(self) -> Offsets:
        robot, places = self.physics.sensed[:, self._robot], self.places
        x, y = places[..., 0] - robot[:, :1], places[..., 1] - robot[:, 1:2]
        return Offsets(x, y, np.sqrt(x * x + y * y))

    def _observe(self, offsets: Offsets) -> Float[np.ndarray, "copies obs"]:
        """What the policies see now."""
        sensed = self.physics.sensed
        height = sensed[:, self._robot.start + 2]
        lidar = pseudo_lidar(self._axes, height, offsets.x, offsets.y, self._cells)
        if self.task.goal == "button":
            lidar[self.lidar_kinds.index("button"), self.timer > 0] = 0.0
        parts = [sensed[:, self._direct], *lidar]
        if self._caster is not None:
            parts.append(rotation_matrices(sensed[:, self._caster]))
        return np.concatenate(parts, axis=1).take(self._columns, axis=1)

    @property
    def robot(self) -> Float[np.ndarray, "copies 3"]:
        """The place of each robot's origin."""
        return self.physics.sensed[:, self._robot]

    @property
    def _axes(self) -> Float[np.ndarray, "copies 2 3"]:
        return self.physics.sensed[:, self._robot_axes].reshape(-1, 2, 3)

    def _follow(self) -> None:
        """Take over the places of what moves."""
        if self._moving_rows.stop:
            moving = self.physics.sensed[:, self._moving]
            self.places[:, self._moving_rows] = moving.reshape(len(moving), -1, 3)[..., :2]

    def _distances(self, offsets: Offsets) -> Float[np.ndarray, "copies terms"]:
        """The distances that the reward wants to shrink."""
        if self.task.goal == "button":
            return offsets.length[:, self.rows["goal"]]
        goal_xy = self.places[:, self.rows["goal"].start]
        box = self.physics.sensed[:, self._moving]
        offset = np.empty((len(box), 2, 3))
        np.subtract(box, self.robot, out=offset[:, 0])
        np.subtract(goal_xy, box[:, :2], out=offset[:, 1, :2])
        np.subtract(GOAL_HEIGHT, box[:, 2], out=offset[:, 1, 2])
        return lengths(offset)

    def _goal_met(self) -> Bool[np.ndarray, " copies"]:
        if self.task.goal == "button":
            touch = self._touch.start + self.goal_button
            return self.physics.sensed[self._copies, touch] > 0.0
        return self.distances[:, 1] <= GOAL_RADIUS

    def _costs(
        self, offsets: Offsets
    ) -> tuple[Float[np.ndarray, "copies parts"], Float[np.ndarray, "copies parts"]]:
        """The parts of the cost, 0 or 1 each, and their margins: positive just where it is 1."""
        away = offsets.length
        touched = self.physics.sensed[:, self._touch] > 0.0
        if self.task.goal == "button":
            # Buttons are the first that can be touched. The right one is no mistake, and no
            # button is while the timer runs.
            buttons = self.rows["button"]
            away = away.copy()
            away[self._copies, buttons.start + self.goal_button] = np.inf
            touched[self._copies, self.goal_button] = False
            touched[:, : buttons.stop - buttons.start] &= (self.timer == 0)[:, None]
        nearest = np.minimum.reduceat(away, self._group_starts, axis=1)[:, self._part_groups]
        margins = self._part_radii - nearest
        costs = np.empty_like(margins)
        costs[:, 0] = margins[:, 0] > 0.0
        contact = np.logical_or.reduceat(touched, self._touch_starts, axis=1)
        costs[:, 1:] = contact
        margins[:, 1:] = np.where(
            contact,
            np.maximum(margins[:, 1:], CONTACT_MARGIN),
            np.minimum(margins[:, 1:], -CONTACT_MARGIN),
        )
        return costs, margins

    def _draw_goal(self, i: int) -> bool:
        """Choose the next goal of one copy; False if there is no room for one."""
        generator = self.generators[i]
        generator.randint(0, 2**32, self.words_due[i], dtype=np.uint32)
        self.words_due[i] = 0
        goal = self.rows["goal"].start
        if self.task.goal == "button":
            self.goal_button[i] = generator.choice(self.task.count("button"))
            self.places[i, goal] = self.places[i, self.rows["button"]][self.goal_button[i]]
            return True
        own = next(group for group in self.groups if group.kind == "goal")
        others = [g for g in self.groups if g.kind not in ("robot", "goal")]
        robot = next(group for group in self.groups if group.kind == "robot")
        now = [self.robot[i, None, :2], *(self.places[i, self.rows[g.kind]] for g in others)]
        keepouts = [g.keepout for g in (robot, *others) for _ in g.rectangles]
        place = redraw(own, np.array(keepouts) + own.keepout, np.concatenate(now), generator)
        if place is None:
            return False
        self.places[i, goal] = place
        return True

    def _find_sensors(self, model: mujoco.MjModel) -> None:
        """Remember in which columns of the sensor readings everything is."""

        def columns(*names: str) -> slice:
            first, last = model.sensor(names[0]), model.sensor(names[-1])
            return slice(int(first.adr[0]), int(last.adr[0] + last.dim[0]))

        names = [model.sensor(i).name for i in range(model.nsensor)]

        def block(prefix: str) -> slice:
            chosen = [name for name in names if name.startswith(prefix)]
            return columns(*chosen) if chosen else slice(0, 0)

        self._robot = columns("framepos_robot")
        self._robot_axes = columns("framexaxis_robot", "frameyaxis_robot")
        free = [f"framepos_{kind}" for kind in FREE_KINDS if self.task.count(kind)]
        self._moving = block(free[0]) if free else slice(0, 0)
        self._touch = block("touch_")
        self._caster = columns("ballquat_rear") if "ballquat_rear" in names else None
        observed = names[: names.index("clock")]
        self._direct_names = [name for name in observed if name != "ballquat_rear"]
        self._direct = columns(self._direct_names[0], self._direct_names[-1])
        self._direct_sizes = [int(model.sensor(name).dim[0]) for name in self._direct_names]

    def _order_observation(self) -> tuple[dict[str, slice], Int[np.ndarray, " obs"]]:
        """Where each component is in an observation, and the gathered columns in that order."""
        sizes = list(zip(self._direct_names, self._direct_sizes, strict=True))
        sizes += [(LIDAR_NAMES[kind], BINS) for kind in self.lidar_kinds]
        if self._caster is not None:
            sizes.append(("ballquat_rear", 9))
        stops = np.cumsum([size for _, size in sizes])
        gathered = {
            name: np.arange(stop - size, stop)
            for (name, size), stop in zip(sizes, stops, strict=True)
        }
        components: dict[str, slice] = {}
        start = 0
        for name in sorted(gathered):
            components[name] = slice(start, start + len(gathered[name]))
            start += len(gathered[name])
        return components, np.concatenate([gathered[name] for name in sorted(gathered)])

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything the future of the copies depends on."""
        keys, positions = zip(*(_generator_words(g) for g in self.generators), strict=True)
        return {name: getattr(self, name).copy() for name in STATE} | {
            "physics": self.physics.save_state(),
            "generator_keys": np.stack(keys),
            "generator_positions": np.array(positions, np.int64),
            "seeders": np.stack([generator_state(g) for g in self.seeders]),
        }

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a saved state, to the last bit."""
        current = self.save_state()
        wrong = sorted(
            name
            for name in current.keys() | state.keys()
            if name not in current or name not in state or state[name].shape != current[name].shape
        )
        if wrong:
            raise ValueError(
                f"This is not a state of {len(self.steps)} copies of {self.task.name}: "
                f"{', '.join(wrong)} missing, unknown or of another shape."
            )
        for name in STATE:
            setattr(self, name, state[name].copy())
        if self.layout_name == "random":
            for i, rows in enumerate(self.layouts):
                self.physics.rearrange(i, Layout(rows[:, :2], rows[:, 2]))
        self.physics.restore_state(state["physics"])
        for generator, key, position in zip(
            self.generators, state["generator_keys"], state["generator_positions"], strict=True
        ):
            generator.set_state(("MT19937", key, int(position), 0, 0.0))
        self.seeders = [restored_generator(words) for words in state["seeders"]]


def lengths(vectors: Float[np.ndarray, "*batch 3"]) -> Float[np.ndarray, "*batch"]:
    """Euclidean lengths; the sum is written out, for a reduction over three numbers is slow."""
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    return np.sqrt(x * x + y * y + z * z)


def rotation_matrices(quaternions: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "n 9"]:
    """The rotation matrices of unit quaternions, row by row.

    One at a time: BLAS, which would multiply them together, orders the sums by their number.
    """
    matrices = np.empty((len(quaternions), 9))
    for matrix, quaternion in zip(matrices, quaternions, strict=True):
        mujoco.mju_quat2Mat(matrix, quaternion)
    return matrices


def _generator_words(generator: np.random.RandomState) -> tuple[np.ndarray, int]:
    state: Any = generator.get_state(legacy=False)
    return state["state"]["key"], state["state"]["pos"]


def words_drawn(seed: int, generator: np.random.RandomState) -> int:
    """How many 32-bit words a generator has given since it was seeded; it is used up by this."""
    stream = np.random.RandomState(seed).randint(0, 2**32, 100_000, dtype=np.uint32)
    ahead = generator.randint(0, 2**32, 2, dtype=np.uint32)
    return int(np.flatnonzero((stream[:-1] == ahead[0]) & (stream[1:] == ahead[1]))[0])
