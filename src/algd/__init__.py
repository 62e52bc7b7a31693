"""Online safe reinforcement learning with diffusion policies."""

__version__ = "0.1.0"
