"""`python -m algd` is `algd`."""

from algd.cli import main

main()
