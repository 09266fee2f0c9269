"""The texts of a run, read from its records: for engines whose tokens come from other processes.

It decides nothing; a token goes into its request's text as the engine itself would put it there. Invariant: after the
last record each text is what the engine that made the tokens had.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.lab.records import RequestRecord, StepRecord
from engine.lab.scenario import Scenario
from engine.model.load import LoadedModel
from engine.runtime.text import TextStream


class SpokenTexts:
    """One text for each request of the scenario."""

    def __init__(self, loaded: LoadedModel, scenario: Scenario) -> None:
        self._loaded = loaded
        specs = dict(zip(scenario.request_ids(), scenario.requests, strict=True))
        self._streams = {name: TextStream(loaded.tokenizer, spec.stop) for name, spec in specs.items()}
        self._ends_at_eos = {name: not spec.ignore_eos for name, spec in specs.items()}

    @property
    def texts(self) -> dict[str, str]:
        return {name: stream.text for name, stream in self._streams.items()}

    def pieces(self, records: Sequence[RequestRecord]) -> dict[str, list[str]]:
        """One text per output token, for display. Pure."""
        piece = self._loaded.tokenizer.piece
        return {record.request_id: [piece(token_id) for token_id in record.output_token_ids] for record in records}

    def take(self, record: StepRecord) -> dict[str, str]:
        """What the step made printable, by request id. Effect: the texts grow."""
        deltas: dict[str, str] = {}
        for output in record.outputs:
            if output.token_id is None:
                continue
            name, stream = output.request_id, self._streams[output.request_id]
            is_end = output.token_id in self._loaded.eos_token_ids and self._ends_at_eos[name]
            delta = "" if is_end else stream.push(output.token_id)
            if output.finish_reason is not None and not stream.stopped:
                delta += stream.finish()
            if delta:
                deltas[name] = deltas.get(name, "") + delta
        return deltas
