"""From an exception to the one sentence a person reads.

The engine's own ValueErrors (ScenarioError, ModelError, RunFileError, ...) are written as such sentences; everything
else is a bug or the machine's fault, and is named by its type.
"""

from __future__ import annotations


def is_for_the_user(error: BaseException) -> bool:
    """Whether the message was written for the person who asked. Pure."""
    return isinstance(error, ValueError) and type(error).__module__.startswith("engine.") and bool(str(error))


def sentence(error: BaseException) -> str:
    """What to show for an exception. Pure."""
    if is_for_the_user(error):
        return str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "the device has not enough free memory for this; use fewer blocks or a smaller model"
    first_line = (str(error).splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def device_is_lost(error: BaseException) -> bool:
    """Whether every later CUDA call of this process will fail too, so that only a new process helps. Pure."""
    return type(error).__name__ != "OutOfMemoryError" and "CUDA error" in str(error)
