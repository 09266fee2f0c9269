"""Where the lab keeps its files and how its two processes find each other. Read from the environment, never mutated."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ENGINE_PORT = 8600


@dataclass(frozen=True)
class Settings:
    """Folders, addresses and the model that is served when a scenario names none."""

    home: Path
    database_url: str
    engine_port: int
    default_model: str

    @property
    def engine_url(self) -> str:
        """Address of the engine server. It listens on loopback only."""
        return f"http://127.0.0.1:{self.engine_port}"

    @property
    def models_dir(self) -> Path:
        return self.home / "models"


class SettingsError(ValueError):
    """An environment variable that cannot be used, in one sentence."""


def settings() -> Settings:
    """Read the settings. Pure but for the environment. Raises: SettingsError."""
    home = Path(os.environ.get("TOKEN_BY_TOKEN_HOME") or Path.home() / ".cache" / "token-by-token").expanduser()
    port = os.environ.get("TOKEN_BY_TOKEN_ENGINE_PORT", str(DEFAULT_ENGINE_PORT))
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise SettingsError(f"TOKEN_BY_TOKEN_ENGINE_PORT is {port!r}; allowed: a whole number from 1 to 65535")
    return Settings(
        home=home,
        database_url=os.environ.get("DATABASE_URL") or f"sqlite:///{home / 'lab.sqlite3'}",
        engine_port=int(port),
        default_model=os.environ.get("TOKEN_BY_TOKEN_MODEL") or "smollm2-135m",
    )
