"""What the commands share: how options are parsed."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def parse(kind: Any, arguments: list[str], command: str, *markers: Any) -> Any:
    """Parse with tyro, whose own complaints also end with the exit code 2."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_whole_numbers)
    config = (tyro.conf.OmitArgPrefixes, *markers)
    prog = f"algd {command}"
    return tyro.cli(kind, args=arguments, prog=prog, config=config, registry=registry)


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
