"""Trained policies in forms that leave this library: NumPy, ONNX, StableHLO."""
