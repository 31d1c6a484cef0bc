"""Deterministic simulation of the real commit protocol: see ``docs/simulation.md``."""
