"""What the commands share: how options are parsed."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from algd.runs.validation import option
from algd.types import UserError
from algd.zoo import PREFIX


def parse(kind: Any, arguments: list[str], command: str, default: Any = None) -> Any:
    """Parse with tyro, whose own complaints also end with the exit code 2."""
    options = {} if default is None else {"default": default}
    return _parse(kind, arguments, command, **options)


def parse_known(kind: Any, arguments: list[str], command: str) -> tuple[Any, list[str]]:
    """The same for a part of the options; the second value are the words that are left."""
    return _parse(kind, arguments, command, return_unknown_args=True, add_help=False)


def _parse(kind: Any, arguments: list[str], command: str, **how: Any) -> Any:
    import tyro

    given = (word.partition("=")[0] for word in arguments if word.startswith("--"))
    for word, times in Counter(word.replace("_", "-") for word in given).items():
        if times > 1:
            raise UserError(f"{word} is given twice. A list is written behind one: {word} A B.")
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_whole_numbers)
    config = (tyro.conf.OmitArgPrefixes,)
    prog = f"algd {command}"
    return tyro.cli(kind, args=arguments, prog=prog, config=config, registry=registry, **how)


def refuse_idle(chosen: Any, names: Iterable[str], why: str) -> None:
    """Refuse options that would change nothing; `why` says when that is so."""
    for field in dataclasses.fields(chosen):
        if field.name in names and getattr(chosen, field.name) != field.default:
            raise UserError(f"{option(field.name)} has no effect {why}.")


def check_named(places: Iterable[Path]) -> None:
    """Refuse a command on runs that names none, or one of the zoo's, which are policies."""
    named = list(map(str, places))
    if not named:
        raise UserError("Which runs? Name their directories, or one above them, such as runs.")
    for name in named:
        if name.startswith(PREFIX):
            raise UserError(f"{name} is a policy: its run is not here to be drawn or recorded.")


def whole_number(text: str) -> int:
    """`100000`, `100_000` or `1e5`."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            if (value := float(text)).is_integer():
                return int(value)
        raise ValueError(f"{text!r} is not a whole number") from None


def _whole_numbers(info: Any) -> Any:
    """How tyro is to read every `int`."""
    from tyro.constructors import PrimitiveConstructorSpec

    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    )


def search_here(envs: Iterable[str | None], trust: bool = False) -> None:
    """Find the module of a `module:Id` that the user typed, or trusts, in the folder they stand in.

    Behind all else, so that no file there is taken for a part of Python.
    """
    if trust or any(env and ":" in env for env in envs):
        sys.path.append("")
