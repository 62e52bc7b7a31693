"""Observations in an environment's own spaces, laid out as the one vector that a policy sees."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from algd.types import Layout, UserError, is_box, is_named


def flattened(layout: Layout, obs: Any, path: str = "") -> Float[np.ndarray, "*batch obs"]:
    """One observation of this layout, or a batch of them along a first axis, in the order of
    Gymnasium's `flatten`."""
    what = f"The observation's part {path}" if path else "An observation"
    if is_box(layout):
        array = numbers(obs)
        batch = array.shape[: array.ndim - len(layout)]
        if len(batch) > 1 or array.shape != (*batch, *layout):
            raise UserError(
                f"{what} has the shape {list(layout)}, a batch {['n', *layout]}; this one has the "
                f"shape {list(array.shape)}.".replace("'", "")
            )
        return array.reshape(*batch, -1)
    named: Any = layout
    if is_named(named[0]):
        if not isinstance(obs, Mapping) or obs.keys() != dict(named).keys():
            given = f"with {', '.join(map(str, obs))}" if isinstance(obs, Mapping) else type(obs)
            names = ", ".join(name for name, _ in named)
            raise UserError(f"{what} is a dictionary with {names}; this one is {given}.")
        parts = [flattened(inner, obs[name], f"{path}/{name}") for name, inner in named]
    else:
        if not isinstance(obs, tuple | list) or len(obs) != len(named):
            raise UserError(f"{what} is a tuple of {len(named)}; this one is {obs!r:.80}.")
        each = enumerate(zip(named, obs, strict=True))
        parts = [flattened(inner, own, f"{path}/{i}") for i, (inner, own) in each]
    if len({part.shape[:-1] for part in parts}) > 1:
        raise UserError(f"{what} has parts for different numbers of observations.")
    return np.concatenate(parts, axis=-1)


def numbers(obs: Any) -> Float[np.ndarray, "..."]:
    """An array of numbers, or a message."""
    try:
        return np.asarray(obs, np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"An observation is an array of numbers: {error}.") from error


def refuse_pair(called_at: set[tuple[int, int]], depth: int = 2) -> None:
    """Refuse `action, state = policy.predict(obs)`, which with two actions would pass in silence.

    What the caller is about to do with the answer stands in its code, behind the call; each place
    that it was `called_at` is looked at once.
    """
    frame = sys._getframe(depth)
    place = (id(frame.f_code), frame.f_lasti)
    if place in called_at:
        return
    from opcode import opmap

    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while code[at] == opmap["CACHE"]:
        at += 2
    if (code[at], code[at + 1]) == (opmap["UNPACK_SEQUENCE"], 2):
        raise UserError(
            "predict returns the action alone, not a pair of action and state: write "
            "`action = policy.predict(obs)`. (For the two numbers of an action: "
            "`left, right = policy.predict(obs).tolist()`.)"
        )
    called_at.add(place)
