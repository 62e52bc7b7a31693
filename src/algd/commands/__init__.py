"""One module for each command, each with `run(arguments)`; `algd.cli` finds them by name."""
