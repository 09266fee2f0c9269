"""The report of a Run, or of two side by side: what ran where, the timeline, the figures, every request, every step.

It arranges; the numbers are those of ``engine.lab.metrics``, the picture is the player's, the tables behind it are its
twin's. Pure functions of Runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.lab import units
from engine.lab.key_figures import Figure, key_figures, phase_times, ratio
from engine.lab.latency import all_request_metrics
from engine.lab.player.payload import Pieces, timeline_payload
from engine.lab.player.twin import timeline_table
from engine.lab.records import Run
from engine.lab.report.blocks import Cell, Code, Facts, Page, Section, Table, Text, Timeline, page
from engine.lab.words import say

Labelled = Sequence[tuple[str, Run]]


def run_report(run: Run, lang: str, pieces: Pieces | None = None) -> str:
    """The HTML file of one Run. ``pieces``: the text of each output token, where it is known. Pure."""
    label = say(lang, "report.policy_run", policy=_policy(run))
    content = Page(
        lang=lang,
        title=say(lang, "report.title", model=run.header.model.name, policy=_policy(run)),
        lead=_lead(run, lang),
        sections=run_sections([(label, run)], lang, [pieces]),
        foot=say(lang, "report.foot", run=run.run_id, created=run.header.created_utc),
    )
    return page(content)


def run_sections(runs: Labelled, lang: str, pieces: Sequence[Pieces | None] | None = None) -> list[Section]:
    """The sections about one Run or two: timeline, figures, model, requests, scenario and device. Pure."""
    figures = Section(say(lang, "report.figures"), [_figures(runs, lang), _provenance(runs, lang)])
    requests = Section(say(lang, "report.requests"), [_requests(label, run, lang) for label, run in runs])
    setting = Section(say(lang, "report.setting"), [b for label, run in runs for b in _setting(label, run, lang)])
    if not all(run.steps for _, run in runs):  # a server watched from outside shows no steps
        return [Section(say(lang, "report.timeline"), [Text(say(lang, "report.no_steps"))]), figures, requests, setting]
    payload = timeline_payload(runs, lang, texts=pieces, autoplay=False)
    steps = [_steps(label, run, lang) for label, run in runs]
    phases = [_phases(label, run, lang) for label, run in runs]
    return [
        Section(say(lang, "report.timeline"), [Timeline(payload), *steps]),
        figures,
        Section(say(lang, "report.compare"), [*phases, Text(Cell(say(lang, "report.formula"), "modelled"))]),
        requests,
        setting,
    ]


def _policy(run: Run) -> str:
    """The policy; of a Run watched from outside, where nobody can see one, the server."""
    observed = run.header.observed
    return observed.server if observed is not None else str(run.header.scenario.get("policy", ""))


def _lead(run: Run, lang: str) -> str:
    figures = {figure.name: figure.text(lang) for figure in key_figures(run)}
    key = "report.lead" if figures["makespan"] != units.DASH else "report.lead_untimed"
    return say(lang, key, device=run.header.device.name, num_requests=len(run.requests), **figures)


def _figures(runs: Labelled, lang: str) -> Table:
    """One row for each figure; with two Runs also the second over the first."""
    all_figures = [key_figures(run) for _, run in runs]
    columns = [say(lang, "report.quantity"), *(label for label, _ in runs)]
    if len(runs) == 2:
        columns.append(say(lang, "report.ratio", second=runs[1][0], first=runs[0][0]))
    rows = []
    for values in zip(*all_figures, strict=True):
        row = [say(lang, f"report.fig_{values[0].name}"), *(_measured(v, lang) for v in values)]
        if len(values) == 2:
            row.append(units.factor(ratio(*values), lang))
        rows.append(row)
    return Table(say(lang, "report.figures_caption"), columns, rows)


def _measured(figure: Figure, lang: str) -> Cell | str:
    return units.DASH if figure.value is None else Cell(figure.text(lang), "measured")


def _provenance(runs: Labelled, lang: str) -> Text:
    places = [
        say(lang, "report.where", device=r.header.device.name, dtype=r.header.dtype, run=r.run_id) for _, r in runs
    ]
    return Text(Cell(say(lang, "report.places", list=say(lang, "report.list").join(places)), "measured"))


def _phases(label: str, run: Run, lang: str) -> Table:
    """Measured beside modelled: the steps of each kind against the roofline of their own work."""
    names = ("steps_of", "num_steps", "measured", "modelled", "factor")
    rows = [
        [
            say(lang, f"report.kind_{found.kind}"),
            units.number(found.num_steps, lang),
            Cell(units.seconds(found.measured_s, lang), "measured"),
            say(lang, "report.no_ceilings")
            if found.modelled_s is None
            else Cell(units.seconds(found.modelled_s, lang), "modelled"),
            units.factor(found.factor, lang),
        ]
        for found in phase_times(run)
    ]
    return Table(say(lang, "report.phases_caption", label=label), [say(lang, f"report.{n}") for n in names], rows)


def _requests(label: str, run: Run, lang: str) -> Table:
    names = ("request", "arrival", "prompt_tokens", "output_tokens", "queue", "ttft", "tpot", "e2e", "preempted",
             "cached", "finish")  # fmt: skip
    rows = []
    for found in all_request_metrics(run).values():
        times = (found.queue_s, found.ttft_s, found.tpot_s, found.e2e_s)
        counts = (found.num_preemptions, found.num_cached_tokens) if run.steps else (None, None)
        rows.append(
            [
                found.request_id,
                units.seconds(found.arrival_s, lang),
                *(units.number(n, lang) for n in (found.num_prompt_tokens, found.num_output_tokens)),
                *(units.seconds(value, lang) for value in times),
                *(units.number(n, lang) for n in counts),
                say(lang, f"player.finish_{found.finish_reason}") if found.finish_reason else units.DASH,
            ]
        )
    caption = say(lang, "report.requests_caption", label=label, run=run.run_id)
    return Table(caption, [say(lang, f"report.col_{name}") for name in names], rows)


def _steps(label: str, run: Run, lang: str) -> Table:
    frame = timeline_table(run, lang)
    rows = [[str(value) for value in row] for row in frame.itertuples(index=False)]
    return Table(
        say(lang, "player.table_caption", label=label),
        list(frame.columns),
        rows,
        folded=True,
        numeric_from=len(frame.columns),
    )


def _rate(value: float | None, unit: str, lang: str) -> Cell | str:
    return Cell(f"{units.number(value, lang)} {unit}", "measured") if value else units.DASH


def _setting(label: str, run: Run, lang: str) -> list[Facts | Code | Text]:
    """Where it ran, on what, and with which scenario, whole, so that it can be run again."""
    header = run.header
    device, model, limits = header.device, header.model, header.scenario.get("limits") or {}
    rows = [
        ("device", device.name),
        ("threads", units.number(device.threads, lang)),
        ("memory", units.byte_count(device.memory_bytes, lang)),
        ("read", _rate(device.read_gbps, "GB/s", lang)),
        ("matmul", _rate(device.matmul_tflops, "TFLOP/s", lang)),
        ("model", model.name),
        ("parameters", say(lang, "report.millions", n=units.number(model.num_parameters / 1e6, lang))),
        ("weights", units.byte_count(model.weight_bytes, lang)),
        ("dtype", f"{header.dtype}, KV {header.kv_dtype}"),
        ("policy", _policy(run)),
        ("limits", ", ".join(f"{name} {value}" for name, value in limits.items())),
        ("block_size", units.number(header.block_size, lang)),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items()) or units.DASH),
    ]
    scenario = json.dumps(header.scenario, ensure_ascii=False, indent=1)
    return [
        Text(label, strong=True),
        Facts([(say(lang, f"report.set_{name}"), value) for name, value in rows]),
        Code(say(lang, "report.scenario", command="python -m engine run SCENARIO.json --out RUN.jsonl"), scenario),
    ]
