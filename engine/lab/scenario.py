"""What to run: a Scenario is plain validated data, and the only way to ask the engine for a Run.

It decides nothing about *how* the run goes (that is the policy's business) and never touches torch. A bad value is
reported as one sentence with the field, the value, the allowed range and what to do (``ScenarioError``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engine.lab.scenario_sentences import sentence

PolicyName = Literal["static", "orca", "paged", "chunked", "cache_aware", "shortest_first"]
DType = Literal["float32", "bfloat16", "float16"]
ProbeName = Literal["training_step", "quantization"]

MAX_REQUESTS_PER_SCENARIO = 256
MAX_PROMPT_CHARACTERS = 20_000
MAX_TOKENS_PER_REQUEST = 8_192
DEFAULT_MODEL = "smollm2-135m"


class ScenarioError(ValueError):
    """A scenario that cannot be run. The message is one sentence for the person who wrote it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Strict):
    """What the scheduler may use in one step and in all. Blocks are KV blocks of ``Scenario.block_size`` positions.

    ``kv_cache`` none: every request gives its blocks back after each token and computes its whole text again for the
    next one. Nobody would serve so; it shows what the cache saves.
    """

    max_requests: int = Field(8, ge=1, le=256)
    max_batch_tokens: int = Field(256, ge=1, le=8_192)
    num_blocks: int = Field(512, ge=1, le=16_384)
    prefix_cache: Literal["none", "hash", "radix"] = "none"
    kv_cache: Literal["keep", "none"] = "keep"

    @model_validator(mode="after")
    def _caches_agree(self) -> Limits:
        if self.kv_cache == "none" and self.prefix_cache != "none":
            raise ValueError("a prefix cache needs kv_cache keep; set prefix_cache to none, or kv_cache to keep")
        return self


class Speculation(_Strict):
    """Guess up to ``num_draft_tokens`` tokens ahead: those that followed the last ``ngram`` ones before."""

    ngram: int = Field(3, ge=1, le=8)
    num_draft_tokens: int = Field(4, ge=1, le=16)


class ServerTarget(_Strict):
    """Another server that speaks the OpenAI API: the workload goes there, and is timed from outside.

    ``url`` is the address with or without ``/v1``. ``model`` is one that it lists; the first one when left out.
    """

    url: str = Field(min_length=1, max_length=300)
    model: str | None = Field(None, min_length=1, max_length=300)
    api: Literal["completions", "chat"] = "completions"

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        """The address without ``/v1`` and without a slash at its end."""
        plain = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        try:
            parts = urlsplit(plain)
            known = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port  # raises for a port that is none
        except ValueError:
            known = False
        if not known or any(c.isspace() for c in plain):
            raise ValueError(f"{url[:80]!r} is no address of a server; write one like http://127.0.0.1:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("an address holds no user, password, query or fragment; leave them out")
        return plain


class Disaggregated(_Strict):
    """Prefill in one engine process, decode in another, keys and values sent between them (DistServe).

    Each worker has one half of the threads and of the blocks. ``link_mb_per_s``: the sender keeps to this rate, in
    10^6 bytes per second; None: as fast as the machine copies from process to process.
    """

    link_mb_per_s: float | None = Field(None, ge=1, le=1_000_000)


class Ring(_Strict):
    """One request at a time over several worker processes, each with a part of its positions (ring attention).

    ``layout``: contiguous gives worker i the i-th part; zigzag cuts into twice as many parts and gives it one from the
    front and one from the back, so that causal attention costs every worker the same.
    """

    num_workers: int = Field(2, ge=1, le=4)
    layout: Literal["contiguous", "zigzag"] = "contiguous"


class RequestSpec(_Strict):
    """One request of the workload. Exactly one of ``prompt`` and ``prompt_token_ids`` is given.

    ``num_prompt_tokens`` fits the prompt to exactly that many tokens (its own tokens repeated or cut), so that a lesson
    can sweep the prompt length. ``chat`` wraps the prompt in the model's chat template.

    ``follows`` names an earlier request: this one arrives ``arrival_s`` after that one is done, and its prompt is all
    that one read and wrote, with its own prompt, if it has one, behind it.
    """

    request_id: str | None = Field(None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")
    arrival_s: float = Field(0.0, ge=0, le=600)
    follows: str | None = Field(None, min_length=1, max_length=64)
    prompt: str | None = Field(None, max_length=MAX_PROMPT_CHARACTERS)
    prompt_token_ids: tuple[int, ...] | None = Field(None, min_length=1, max_length=MAX_TOKENS_PER_REQUEST)
    num_prompt_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS_PER_REQUEST)
    chat: bool = False
    max_tokens: int = Field(50, ge=1, le=MAX_TOKENS_PER_REQUEST)
    ignore_eos: bool = False
    temperature: float = Field(0.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1, le=1_000_000)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    stop: tuple[str, ...] = Field((), max_length=8)

    @model_validator(mode="after")
    def _one_prompt(self) -> RequestSpec:
        if self.follows is not None and (self.chat or self.num_prompt_tokens is not None):
            raise ValueError(
                "a request that follows another takes its text as it is; leave out chat, num_prompt_tokens"
            )
        has_neither = self.prompt is None and self.prompt_token_ids is None
        if has_neither and self.follows is not None:
            return self
        if has_neither or (self.prompt is not None and self.prompt_token_ids is not None):
            raise ValueError("give exactly one of prompt and prompt_token_ids")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("prompt is empty; write at least one character that is not a space")
        if self.prompt_token_ids is not None and (self.chat or self.num_prompt_tokens is not None):
            raise ValueError("chat and num_prompt_tokens need prompt, not prompt_token_ids")
        if self.prompt_token_ids is not None and min(self.prompt_token_ids) < 0:
            raise ValueError("prompt_token_ids must be 0 or more")
        if any(not s for s in self.stop):
            raise ValueError("a stop string is empty; leave it out")
        return self


class Scenario(_Strict):
    """A whole workload with the policy and the limits that serve it. See design: "What to run".

    ``probes`` are measured right after the last request, on the same model and device, and stand in the Run's header:
    ``training_step`` learns once from the prompt of the last request; ``quantization`` gives that request's text to the
    model without ``weights`` and ``kv_dtype`` as well, and compares the logits (``engine.lab.probes``).

    ``num_kv_heads`` gives the model another number of KV heads than its own: its own repeated for more (the same
    function, a larger cache), averaged for fewer (a smaller cache and, untrained, worse text).

    With ``server`` the workload goes to another server and is only observed (``engine.lab.observed``): policy, limits,
    dtype and block size are that server's business, and what stands here of them is not used.
    """

    name: str = Field("", max_length=200)
    model: str = Field(DEFAULT_MODEL, min_length=1, max_length=300)
    policy: PolicyName = "chunked"
    limits: Limits = Limits()
    dtype: DType = "float32"
    weights: Literal["int8", "int4"] | None = None
    kv_dtype: Literal["int8", "int4"] | None = None
    block_size: int = Field(16, ge=1, le=256)
    speculation: Speculation | None = None
    disaggregated: Disaggregated | None = None
    ring: Ring | None = None
    num_kv_heads: int | None = Field(None, ge=1, le=1_024)
    seed: int = Field(0, ge=0, le=2**63 - 1)
    probes: tuple[ProbeName, ...] = Field((), max_length=1)
    server: ServerTarget | None = None
    requests: tuple[RequestSpec, ...] = Field(min_length=1, max_length=MAX_REQUESTS_PER_SCENARIO)

    @model_validator(mode="after")
    def _may_forget(self) -> Scenario:
        if self.limits.kv_cache == "none" and self.policy == "static":
            raise ValueError("static batching keeps its batch; for limits.kv_cache none choose another policy")
        return self

    @model_validator(mode="after")
    def _may_speculate(self) -> Scenario:
        if self.speculation is not None:
            if self.policy == "static":
                raise ValueError("static batching runs rows of one token; for speculation choose another policy")
            if self.limits.kv_cache == "none":
                raise ValueError("speculation needs limits.kv_cache keep; set it so, or leave speculation out")
            if self.kv_dtype is not None:
                raise ValueError(
                    f"speculation overwrites wrong guesses, which kv_dtype {self.kv_dtype} cannot; leave one out"
                )
        return self

    @model_validator(mode="after")
    def _may_probe(self) -> Scenario:
        if "quantization" in self.probes and self.weights is None and self.kv_dtype is None:
            raise ValueError("the probe quantization compares with nothing quantized; give weights or kv_dtype")
        if "quantization" in self.probes and self.requests[-1].follows is not None:
            raise ValueError("the probe quantization needs a last request that follows none; put another one last")
        return self

    @model_validator(mode="after")
    def _may_observe(self) -> Scenario:
        if self.server is None:
            return self
        for name in ("weights", "kv_dtype", "speculation", "num_kv_heads"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is decided by the server at {self.server.url}; leave it out")
        if self.probes:
            raise ValueError("probes need this engine's own model; leave them out, or leave server out")
        for name, request in zip(self.request_ids(), self.requests, strict=True):
            if request.follows is not None or request.prompt is None or request.num_prompt_tokens is not None:
                raise ValueError(
                    f"request {name}: a server is sent texts, with its own tokenizer; give prompt, "
                    "and leave out prompt_token_ids, num_prompt_tokens and follows"
                )
        return self

    @model_validator(mode="after")
    def _may_be_split(self) -> Scenario:
        for name in ("disaggregated", "ring"):
            if getattr(self, name) is not None:
                _require_splittable(self, name)
        if self.disaggregated is not None and self.limits.num_blocks < 2:
            raise ValueError("disaggregated gives each worker half of limits.num_blocks; allowed: 2 or more")
        return self

    @model_validator(mode="after")
    def _unique_ids(self) -> Scenario:
        ids = [r.request_id for r in self.requests if r.request_id is not None]
        if len(set(ids)) != len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise ValueError(f"request_id {twice!r} stands twice; give every request its own")
        names = self.request_ids()
        for index, request in enumerate(self.requests):
            if request.follows is not None and request.follows not in names[:index]:
                raise ValueError(
                    f"requests[{index}].follows is {request.follows!r}; name a request that stands before it"
                )
        return self

    def request_ids(self) -> list[str]:
        """The id of each request in order: its own, or ``r<index>``, skipping ids already taken. Pure."""
        taken = {r.request_id for r in self.requests if r.request_id is not None}
        ids: list[str] = []
        for index, request in enumerate(self.requests):
            name = request.request_id or f"r{index}"
            while request.request_id is None and name in taken:
                name += "_"
            taken.add(name)
            ids.append(name)
        return ids

    @classmethod
    def parse(cls, data: object) -> Scenario:
        """Validate a decoded JSON value. Raises: ScenarioError naming field, value and allowed range."""
        if isinstance(data, Scenario):
            return data
        if not isinstance(data, dict):
            raise ScenarioError(
                f"a scenario is a JSON object, not {type(data).__name__}; see README for the smallest one"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ScenarioError(*sentence(error, _MODELS)) from None

    @classmethod
    def load(cls, path: str | Path) -> Scenario:
        """Read and validate a scenario file. Raises: ScenarioError, also for a file that cannot be read or decoded."""
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ScenarioError(f"cannot read {path}: {reason}; give the path of a scenario file") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ScenarioError(f"{path} is not JSON ({error}); correct the file") from None
        except RecursionError:
            raise ScenarioError(f"{path} is nested too deeply to be a scenario; correct the file") from None
        return cls.parse(data)


def _require_splittable(scenario: Scenario, name: str) -> None:
    """Raises: ValueError for what the engines of several processes do not do."""
    asked = {
        "policy": (scenario.policy, "chunked"),
        "limits.prefix_cache": (scenario.limits.prefix_cache, "none"),
        "limits.kv_cache": (scenario.limits.kv_cache, "keep"),
        "kv_dtype": (scenario.kv_dtype, None),
        "speculation": (scenario.speculation, None),
        "probes": (scenario.probes, ()),
        "num_kv_heads": (scenario.num_kv_heads, None),
        "server": (scenario.server, None),
        "ring" if name == "disaggregated" else "disaggregated": (
            scenario.ring if name == "disaggregated" else scenario.disaggregated,
            None,
        ),
    }
    if name == "ring":
        asked["limits.max_requests"] = (scenario.limits.max_requests, 1)
        asked["weights"] = (scenario.weights, None)
    for field, (value, allowed) in asked.items():
        if value != allowed:
            wanted = f"no {field}" if allowed in (None, ()) else f"{field} {allowed}"
            raise ValueError(f"{name} works with {wanted}; change {field}, or leave {name} out")
    if any(request.follows is not None for request in scenario.requests):
        raise ValueError(f"{name} works with requests that follow nobody; leave out follows")


_MODELS: dict[str, type[BaseModel]] = {
    "": Scenario,
    "limits": Limits,
    "requests": RequestSpec,
    "speculation": Speculation,
    "disaggregated": Disaggregated,
    "ring": Ring,
    "server": ServerTarget,
}
