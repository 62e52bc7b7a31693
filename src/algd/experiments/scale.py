"""How much of an experiment is repeated."""

from typing import Literal

Scale = Literal["smoke", "cpu", "paper"]
"""smoke: tiny, shows that it works; cpu: hours on a few cores; paper: what the paper did."""
