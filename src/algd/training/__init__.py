"""From settings to a trained policy."""
