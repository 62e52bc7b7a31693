"""The command line. Each command imports what it needs when it is called."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from algd.cli.terminal import considerate_output

COMMANDS = {
    "train": "train a policy (ALGD on DiffDrive, if nothing else is said)",
    "resume": "continue a run from its last checkpoint",
    "evaluate": "roll out a run's policy and summarise return and cost",
    "sweep": "train many runs: tasks x presets x seeds x settings",
    "reproduce": "remake the figures and tables of the paper",
    "record": "keep what finished runs are judged by, each in one small file",
    "export": "write a policy for NumPy, ONNX or StableHLO",
    "dataset": "write a run's replay buffer as a Minari dataset",
    "plot": "draw runs: curves, final return against cost, boxes, multiplier",
    "render": "film a policy in its task, with its cost against the budget",
    "report": "put runs on one page: tables, figures, films",
    "list": "show algorithms and tasks",
    "bench": "measure speed: bench update, bench env, bench train, bench loop",
}
USAGE = """algd: online safe reinforcement learning with diffusion policies

usage: algd COMMAND [options]      algd help COMMAND explains one command

{commands}

A first run, about four minutes on two cores:   algd train
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a mistake of the user ends with a message and the exit code 2."""
    with considerate_output():
        _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(given: list[str]) -> None:
    while given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    if not given or given[0] in ("-h", "--help"):
        print(USAGE.format(commands="\n".join(f"  {k:10s} {v}" for k, v in COMMANDS.items())))
        return
    if given[0] in ("-V", "--version", "version"):
        from algd import __version__

        print(__version__)
        return
    from algd.types import Halt, UserError, nearest

    warnings.formatwarning = _format_warning
    try:
        if given[0].startswith("-"):
            raise UserError(
                f"{given[0]!r} stands before the command, and options come behind it, as in "
                "'algd train --steps 1000'; 'algd --help' lists the commands."
            )
        if given[0] not in COMMANDS:
            from algd.algorithms import presets

            name = given[0].lower()
            hint = nearest(name, COMMANDS)
            if name in presets():
                hint = f" It is a preset: algd train {name}, explained by algd help train {name}."
            raise UserError(f"There is no command {given[0]!r}.{hint}")
        import_module(f"algd.cli.{given[0]}").run(given[1:])
    except UserError as error:
        print(f"algd: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            # Among others, a pipe that nobody reads.
            raise
        # A name too long, a directory that may not be read, and whatever else the system says.
        print(f"algd: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except Halt as halt:
        print(halt, file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("algd: stopped", file=sys.stderr)
        sys.exit(130)


def _format_warning(message: Warning | str, category: type[Warning], *where: Any) -> str:
    """A warning of ours for a reader; others with the place that they come from."""
    if category is UserWarning:
        return f"algd: {message}\n"
    filename, line = where[:2]
    return f"{filename}:{line}: {category.__name__}: {message}\n"


if __name__ == "__main__":
    main()
