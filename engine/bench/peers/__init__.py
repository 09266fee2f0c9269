"""Scripts that measure one peer each, run with that peer's interpreter; ``common`` is what they share with ours."""
