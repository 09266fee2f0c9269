"""Requests that follow others: held back until the one before is over, then given its text as their prompt.

As the next turn of a conversation does, or a reader of what another request has written. Nothing is scheduled here and
no clock is read: the moment a request arrives follows from the record that ended the one before. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.lab.records import StepRecord
from engine.lab.scenario import Scenario
from engine.scheduling.requests import Request


class Followers:
    """Made from a scenario and its requests in the same order; ``first`` are those that follow nobody."""

    def __init__(self, scenario: Scenario, requests: Sequence[Request]) -> None:
        self._requests = {request.request_id: request for request in requests}
        self._held: dict[str, list[Request]] = {}
        self.first: list[Request] = []
        for request, spec in zip(requests, scenario.requests, strict=True):
            if spec.follows is None:
                self.first.append(request)
            else:
                self._held.setdefault(spec.follows, []).append(request)

    def due(self, record: StepRecord) -> list[Request]:
        """The requests that may be added to the engine after this step. Effect: each gets its prompt and its arrival.

        ``arrival_s`` is the end of the request before plus what the scenario asks for, which may already be past.
        """
        found = []
        for output in record.outputs:
            if output.finish_reason is None:
                continue
            leader = self._requests[output.request_id]
            for request in self._held.pop(leader.request_id, []):
                request.prompt_token_ids = [*leader.token_ids, *request.prompt_token_ids]
                request.token_ids = list(request.prompt_token_ids)
                request.arrival_s += record.t_end_s
                found.append(request)
        return found
