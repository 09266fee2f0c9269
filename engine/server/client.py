"""The pages' door to the engine server: one method per route, typed answers, two kinds of failure.

It imports no torch and holds no state but an HTTP connection, so one client may be shared by all sessions. Time-outs
are short: a page must never hang on an engine that is busy or gone. It decides nothing; it never retries on its own.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from engine.lab.records import Run, RunFileError, StepRecord
from engine.lab.scenario import Scenario
from engine.settings import settings

ENGINE_URL_VARIABLE = "TOKEN_BY_TOKEN_ENGINE_URL"  # set by the supervisor, because the port may have been taken
CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 5.0
FILE_TIMEOUT_S = 30.0


class EngineUnavailable(Exception):
    """The engine cannot be asked now. ``restarted``: it is a new instance that does not know the run asked for."""

    def __init__(self, message: str, *, restarted: bool = False) -> None:
        super().__init__(message)
        self.restarted = restarted


class EngineRefused(Exception):
    """The engine answered no, in one sentence; ``field`` names what to change where there is such a thing.

    ``code`` is the reason as a word where one status has several: ``QueueFull``'s for 429.
    """

    def __init__(self, message: str, field: str = "", status: int = 422, code: str = "") -> None:
        super().__init__(message)
        self.message, self.field, self.status, self.code = message, field, status, code


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Readiness(_Answer):
    """How far the engine is. ``fraction`` is 0 to 1, None while it cannot be known."""

    ready: bool
    state: Literal["starting", "loading", "ready", "failed"]
    stage: str = ""
    fraction: float | None = None
    message: str = ""
    instance: str = ""


class RunStatus(_Answer):
    """A run as its follower sees it. ``steps`` are the records from ``since`` on; ``position`` 0 = on the device."""

    run_id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int = 0
    error: str | None = None
    num_steps: int = 0
    num_tokens: int = 0
    total_tokens: int = 0
    steps: list[StepRecord] = []
    texts: dict[str, str] = {}
    stage: str = ""
    instance: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def fraction(self) -> float:
        """Share of the tokens asked for that are made, 0 to 1; requests may end sooner, so a finished run is 1."""
        if self.state == "done":
            return 1.0
        return min(1.0, self.num_tokens / self.total_tokens) if self.total_tokens else 0.0


class RunTexts(_Answer):
    """What a finished run said: per request its text, and its tokens one by one as text pieces."""

    texts: dict[str, str]
    pieces: dict[str, list[str]]


class Tokens(_Answer):
    num_tokens: int
    pieces: list[str]


Kind = TypeVar("Kind", bound=_Answer)


class EngineClient:
    """Talks to one engine server. Every method raises EngineUnavailable or EngineRefused, and nothing else."""

    def __init__(self, base_url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        # trust_env: a proxy from the environment has no business between two processes of one machine.
        self._http = httpx.Client(
            base_url=self.base_url,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=False,
            transport=transport,
        )

    @classmethod
    def default(cls) -> EngineClient:
        """A client for the engine this lab started, or for the configured address if it started none."""
        return cls(os.environ.get(ENGINE_URL_VARIABLE) or settings().engine_url)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def health(self) -> bool:
        """Whether the server answers at all. Never raises."""
        try:
            return self._http.get("/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def ready(self) -> Readiness:
        """How far the engine is; a failed load is an answer too, not an error."""
        response = self._send("GET", "/readyz", allow=(503,))
        return self._parse(Readiness, response)

    def device(self) -> dict[str, Any]:
        """The device, its measured ceilings, the default model and the limits; empty while the engine loads."""
        response = self._send("GET", "/lab/device")
        try:
            report = response.json()
        except ValueError:
            report = None
        if not isinstance(report, dict):
            raise self._stranger()
        return report

    def submit(self, scenario: Scenario, client_id: str) -> RunStatus:
        """Effect: queue a run. Follow it at least every few seconds, or it is cancelled."""
        body = {"scenario": scenario.model_dump(mode="json"), "client_id": client_id}
        return self._parse(RunStatus, self._send("POST", "/lab/runs", json=body))

    def follow(self, run_id: str, since: int = 0) -> RunStatus:
        """The run's state and its step records from ``since`` on. Effect: renews the lease."""
        return self._parse(RunStatus, self._send("GET", f"/lab/runs/{_quoted(run_id)}", params={"since": since}))

    def cancel(self, run_id: str) -> RunStatus:
        """Effect: the run ends at once. A run that is over stays as it is."""
        return self._parse(RunStatus, self._send("DELETE", f"/lab/runs/{_quoted(run_id)}"))

    def fetch_run(self, run_id: str) -> Run:
        """The whole Run of a run that is done."""
        response = self._send("GET", f"/lab/runs/{_quoted(run_id)}/run", timeout=FILE_TIMEOUT_S)
        try:
            return Run.from_jsonl(response.text)
        except RunFileError as error:
            raise EngineUnavailable(f"the engine sent a Run that cannot be read: {error}") from None

    def fetch_texts(self, run_id: str) -> RunTexts:
        """The texts of a run that is done."""
        return self._parse(RunTexts, self._send("GET", f"/lab/runs/{_quoted(run_id)}/texts", timeout=FILE_TIMEOUT_S))

    def tokenize(self, text: str, *, chat: bool = False) -> Tokens:
        """How the served model cuts a text; ``chat`` counts the chat template too."""
        return self._parse(Tokens, self._send("POST", "/lab/tokenize", json={"text": text, "chat": chat}))

    def _send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: dict[str, int] | None = None,
        timeout: float | None = None,
        allow: tuple[int, ...] = (),
    ) -> httpx.Response:
        limits = httpx.Timeout(timeout or READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            response = self._http.request(method, path, json=json, params=params, timeout=limits)
        except httpx.TimeoutException:
            raise EngineUnavailable("the engine did not answer in time; it may be starting or very busy") from None
        except httpx.HTTPError:
            raise EngineUnavailable(f"the engine is not running at {self.base_url}") from None
        except UnicodeEncodeError:
            raise EngineRefused("the text holds half a surrogate pair, which is no character") from None
        if response.is_success or response.status_code in allow:
            return response
        raise _failure(response)

    def _parse(self, kind: type[Kind], response: httpx.Response) -> Kind:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError:
            raise self._stranger() from None

    def _stranger(self) -> EngineUnavailable:
        return EngineUnavailable(f"{self.base_url} answered, but not as the engine does; is another program there?")


def _quoted(run_id: str) -> str:
    # A run id may come from a link: it must not turn into another path.
    return quote(run_id, safe="") or "none"


def _failure(response: httpx.Response) -> EngineUnavailable | EngineRefused:
    try:
        error = response.json()["error"]
        message, field, code = str(error["message"]), str(error.get("field", "")), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return EngineUnavailable(f"{response.url} answered with status {response.status_code}")
    if response.status_code >= 500:
        return EngineUnavailable(message)
    if code == "restarted":
        return EngineUnavailable(message, restarted=True)
    return EngineRefused(message, field, response.status_code, str(code or ""))
