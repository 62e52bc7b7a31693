"""Refuse settings that cannot be trained, before anything is made or written.

A field's annotation says which values it takes, and how large a number may be.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from algd.types import MOST, Ascending, Range, UserError, When

BY_TYPE = {int: Range(1, MOST), float: Range()}

# Pairs of numbers of which the first must not exceed the second.
ORDERED_FIELDS = (("sigma_min", "sigma_max"),)


def check_fields(settings: Any) -> None:
    """Refuse the first field whose value it cannot take."""
    names = [field.name for field in dataclasses.fields(settings)]
    check_values(type(settings), {name: getattr(settings, name) for name in names})


def check_values(kind: Any, values: Mapping[str, Any]) -> None:
    """Refuse the first of these values that the dataclass's field cannot take."""
    hints = get_type_hints(kind, include_extras=True)
    for name, given in values.items():
        if name not in hints:
            raise UserError(f"there is no {option(name)} here; another version may have it.")
        problem = _problem(given, hints[name])
        if problem:
            raise UserError(f"{option(name)} must be {problem}, not {given!r}.")


def check_hyperparameters(algorithm: Any) -> None:
    """Refuse hyperparameters that no run can be trained with."""
    check_fields(algorithm)
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    for low, high in ORDERED_FIELDS:
        if low in values and values[low] > values[high]:
            raise UserError(
                f"{option(low)} must not exceed {option(high)}, "
                f"but {values[low]} is more than {values[high]}."
            )
    # Without a choice of rule the multiplier lives in log space.
    initial_lam = values.get("initial_lam", 1.0)
    if values.get("dual", "log-adam") == "log-adam" and initial_lam <= 0:
        raise UserError("--initial-lam must be above 0: a logarithm follows the multiplier.")
    hinged = (values.get("energy"), values.get("dual_signal")) == ("augmented", "episodes")
    if initial_lam < 0 and not hinged:
        raise UserError(
            "--initial-lam may be below 0 only where it is a higher limit: with --energy augmented "
            f"and --dual-signal episodes; it is {initial_lam}."
        )


def check_effect(before: Any, chosen: Any) -> None:
    """Refuse the change of a hyperparameter that counts only with another value of another one."""
    for name, hint in get_type_hints(type(chosen), include_extras=True).items():
        if getattr(chosen, name) == getattr(before, name):
            continue
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, When) and getattr(chosen, mark.option) not in mark.values:
                value = getattr(chosen, mark.option)
                raise UserError(f"{option(name)} has no effect with {option(mark.option)} {value}.")


def fitted(value: Any, hint: Any) -> Any:
    """The value as a field of this type keeps it: tuples for lists, Python's numbers for NumPy's,
    100000 for 1e5 and 1.0 for 1. What does not fit stays as it is, for `check_fields` to refuse."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else (value,)
        return tuple(fitted(item, arguments[0]) for item in items)
    if origin in (Union, types.UnionType):
        return fitted(value, arguments[0])
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return float(value) if hint is float and type(value) is int else value


def fitted_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a dataclass's fields, each as its field keeps it, or refused."""
    hints = get_type_hints(kind)
    found = {name: fitted(value, hints[name]) for name, value in values.items()}
    check_values(kind, found)
    return found


def checked(name: str, value: Any, hint: Any) -> Any:
    """One argument of a function, as `fitted` makes it, or refused."""
    found = fitted(value, get_args(hint)[0] if get_origin(hint) is Annotated else hint)
    problem = _problem(found, hint)
    if problem:
        raise UserError(f"{name} must be {problem}, not {value!r}.")
    return found


def option(name: str) -> str:
    """The spelling of the command line."""
    return f"--{name.replace('_', '-')}"


def _problem(value: Any, hint: Any, *marks: Any) -> str | None:
    """What the value should have been, or nothing if it is right; `marks` are what stands beside
    the type in an `Annotated`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _problem(value, *(mark for mark in arguments if not isinstance(mark, When)))
    if origin is Literal:
        return None if value in arguments else f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        found = [_problem(value, argument) for argument in arguments]
        return None if None in found else found[0]
    if origin is tuple:
        return _tuple_problem(value, arguments, Ascending in marks)
    if hint is int and (isinstance(value, bool) or not isinstance(value, int)):
        return "a whole number"
    if hint is float and (isinstance(value, bool) or not isinstance(value, int | float)):
        return "a number"
    if hint in (int, float):
        return _range_problem(value, *(marks or (BY_TYPE[hint],)))
    if hint is str:
        fine = isinstance(value, str) and value.isprintable()
        return None if fine else "a text without line breaks and control characters"
    return None if isinstance(value, hint) else f"a {hint.__name__}"


def _tuple_problem(value: Any, arguments: tuple[Any, ...], ascending: bool) -> str | None:
    any_length = arguments[-1] is Ellipsis
    if not isinstance(value, tuple) or not (any_length or len(value) == len(arguments)):
        return "a tuple" if any_length else f"{len(arguments)} numbers"
    problems = (_problem(item, arguments[0]) for item in value)
    problem = next((found for found in problems if found), None)
    if problem:
        return f"made of values that are each {problem}"
    if ascending and value[0] >= value[1]:
        return "a lower and a higher number"
    return None


def _range_problem(value: int | float, limits: Range) -> str | None:
    if not math.isfinite(value):
        return "a finite number"
    if value < limits.low or (limits.above and value == limits.low):
        return f"{'above' if limits.above else 'at least'} {limits.low}"
    return f"at most {limits.high:,}" if value > limits.high else None
