"""The error for Runs that cannot answer what a lesson asks. It stands alone so that no import goes in a circle."""


class FactsError(ValueError):
    """Runs that are missing, unfinished or of another workload, in one sentence."""
