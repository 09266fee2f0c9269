"""Numbers as the pages write them: those of ``engine.lab.units``, which the reports use too."""

from engine.lab.units import DASH, byte_count, factor, flop_count, milliseconds, number, percent, seconds

__all__ = ["DASH", "byte_count", "factor", "flop_count", "milliseconds", "number", "percent", "seconds"]
