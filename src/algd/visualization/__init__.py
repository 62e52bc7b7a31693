"""Figures, films and pages."""
