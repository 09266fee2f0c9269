"""The command line: ``python -m engine serve | run | check | export | import | diff | accuracy | roof | bench ...``.

Everything the pages do can be done here. Results go to stdout, progress and errors to stderr. A mistake of the user is
one sentence and exit code 2 (a Run that fails its check: 1), Ctrl-C is quiet (130), and no file is left half-written.
Heavy imports stand inside the commands, so that ``--help`` and ``check`` answer at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from engine.lab.records import Run, StepRecord
    from engine.lab.scenario import Scenario
    from engine.runtime.lab import LabRuntime

    OnProgress = Callable[[str, float | None, str], None]

USER_ERROR = 2
PORT_TAKEN = 3
INTERRUPTED = 130

cli = typer.Typer(
    help="Token by Token's inference engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class ExportFormat(StrEnum):
    chrome = "chrome"
    csv = "csv"
    html = "html"


class QuantizedName(StrEnum):
    int8 = "int8"
    int4 = "int4"


class DTypeName(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class KernelsName(StrEnum):
    torch = "torch"
    triton = "triton"
    cpp = "cpp"


class Language(StrEnum):
    en = "en"
    zh = "zh"


class CsvTable(StrEnum):
    steps = "steps"
    requests = "requests"


KernelsOption = Annotated[
    KernelsName | None,
    typer.Option(
        help="Kernels that run the model; default: triton on a GPU, cpp on a CPU, torch where neither can be."
    ),
]


@cli.command()
def serve(
    port: Annotated[int | None, typer.Option(help="Port on 127.0.0.1; default 8600.", min=1, max=65_535)] = None,
    model: Annotated[str | None, typer.Option(help="The model to serve; `models` lists them.")] = None,
    kernels: KernelsOption = None,
    exit_with_parent: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Serve the OpenAI API and the lab API on this machine."""
    from engine.server import app
    from engine.server.worker import lab_runtime
    from engine.settings import settings

    with sentences():
        config = settings()
        _let_waiting_threads_sleep()
        try:
            sock = app.bind(port or config.engine_port)
        except app.PortTaken as error:
            _say(str(error))
            raise typer.Exit(PORT_TAKEN) from None
        os.environ["TOKEN_BY_TOKEN_SERVING_PORT"] = str(sock.getsockname()[1])  # so that it never waits for itself
        if not exit_with_parent:
            _say(f"engine at http://{app.HOST}:{sock.getsockname()[1]} (Ctrl-C stops it)")
        served = model or config.default_model
        code = app.serve(sock, served, lab_runtime(served, kernels), exit_with_parent=exit_with_parent)
    raise typer.Exit(code)


@cli.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (JSON).")],
    out: Annotated[Path, typer.Option(help="Where the Run file is written.")],
    kernels: KernelsOption = None,
) -> None:
    """Run a scenario on this device and write its Run; the last line printed is a JSON summary."""
    with sentences():
        from engine.lab.scenario import Scenario

        _check_writable(out)
        wanted = Scenario.load(scenario)
        result = _execute(wanted, kernels)
        result.save(out)
        print(json.dumps(_summary(result, out), ensure_ascii=False))


@cli.command()
def check(run: Annotated[Path, typer.Argument(help="A Run file.")]) -> None:
    """Replay a Run's records; exit 1 and name the first broken invariant."""
    with sentences():
        from engine.lab.check import CheckError, check_file

        try:
            checked = check_file(run)
        except CheckError as error:
            _say(str(error))
            raise typer.Exit(1) from None
        print(f"ok: {run} holds {len(checked.steps)} steps and {len(checked.requests)} requests, every invariant holds")


@cli.command()
def export(
    run: Annotated[Path, typer.Argument(help="A Run file.")],
    format: Annotated[ExportFormat, typer.Option(help="chrome (opens in Perfetto), csv, or html (a report).")],
    out: Annotated[Path, typer.Option(help="Where the export is written.")],
    table: Annotated[CsvTable, typer.Option(help="For csv: a row per step or per request.")] = CsvTable.steps,
    lang: Annotated[Language, typer.Option(help="For html: the language of the report.")] = Language.en,
) -> None:
    """Turn a Run into a file other programs read."""
    with sentences():
        from engine.lab import export as exports
        from engine.lab.records import Run

        _check_writable(out)
        loaded = Run.load(run)
        if format is ExportFormat.html:
            from engine.lab.report import run_report

            text = run_report(loaded, lang.value)
        elif format is ExportFormat.chrome:
            text = json.dumps(exports.to_chrome(loaded))
        else:
            text = exports.to_csv(loaded, table.value)
        _write(out, text)
        print(f"wrote {out}")


@cli.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A result of `vllm bench serve --save-detailed`, or a Chrome trace.")],
    out: Annotated[Path, typer.Option(help="Where the Run file is written.")],
) -> None:
    """Turn a file of another tool into a Run, and say what it lacks."""
    with sentences():
        from engine.lab.check import CheckError
        from engine.lab.imports import import_run
        from engine.lab.records import RunFileError

        _check_writable(out)
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise RunFileError(f"{file} is not a text file; give a file of JSON") from None
        try:
            run = import_run(text, file.name, f"run-{secrets.token_hex(6)}")
        except CheckError as error:
            _say(str(error))
            raise typer.Exit(1) from None
        run.save(out)
        lacks = run.header.observed.lacks if run.header.observed else []
        print(json.dumps({"run_id": run.run_id, "out": str(out), "requests": len(run.requests), "lacks": lacks}))


@cli.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A Run file.")],
    after: Annotated[Path, typer.Argument(help="A Run of the same workload, under another policy or other limits.")],
    lang: Annotated[Language, typer.Option(help="The language of the sentences.")] = Language.en,
) -> None:
    """Say which requests got better or worse in the second Run, and why, from the recorded refusals."""
    with sentences():
        from engine.lab import counterfactual, diff_words
        from engine.lab.records import Run

        print(diff_words.told_text(counterfactual.diff(Run.load(before), Run.load(after)), lang.value))


@cli.command()
def accuracy(
    weights: Annotated[QuantizedName | None, typer.Option(help="Quantize the weights.")] = None,
    kv_dtype: Annotated[QuantizedName | None, typer.Option(help="Quantize keys and values.")] = None,
    model: Annotated[str | None, typer.Option(help="The model; `models` lists them.")] = None,
    dtype: Annotated[DTypeName, typer.Option(help="What everything else is computed in.")] = DTypeName.float32,
    tokens: Annotated[int, typer.Option(help="Tokens compared after each prompt.", min=1, max=1_024)] = 32,
    prompt: Annotated[list[str] | None, typer.Option(help="May be given several times; default: five.")] = None,
) -> None:
    """Compare a quantized model with itself unquantized: logit errors, KL, first divergent token; prints JSON."""
    with sentences():
        if weights is None and kv_dtype is None:
            raise typer.BadParameter("nothing is quantized; give --weights, --kv-dtype or both")
        with progress() as on_progress:
            runtime = _runtime(on_progress)
            from engine.runtime.accuracy import DEFAULT_PROMPTS, compare_quantized
            from engine.settings import settings

            name = model or settings().default_model
            plain = runtime.load(name, dtype)
            quantized = runtime.load(name, dtype, weights) if weights else plain
            prompts = [plain.tokenizer.encode(text) for text in prompt or DEFAULT_PROMPTS]
            report = compare_quantized(
                plain,
                quantized,
                prompts,
                tokens,
                kv_dtype,
                on_token=lambda done: on_progress("accuracy", done / tokens, f"token {done} of {tokens}"),
            )
        head = {"model": plain.info.name, "dtype": dtype, "weights": weights, "kv_dtype": kv_dtype}
        print(json.dumps({**head, **dataclasses.asdict(report)}, ensure_ascii=False))


@cli.command()
def roof() -> None:
    """Measure this device's ceilings (read bandwidth, matmul rate) and print them as JSON."""
    with sentences():
        with progress() as on_progress:
            ceilings = _runtime(on_progress).calibrate()
        print(ceilings.model_dump_json())


@cli.command()
def bench(
    peers: Annotated[str, typer.Option(help="Engines to compare with: hf, llamacpp, vllm.")] = "",
    only: Annotated[str, typer.Option(help="Measure these suites and keep the file's others; default: all.")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File that takes the results, and keeps them.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds, each in fresh processes.", min=1, max=50)] = 5,
    quick: Annotated[bool, typer.Option(help="Everything small: shows that it works, measures nothing.")] = False,
    minutes: Annotated[float, typer.Option(help="Begin no round that would end later.", min=0.1)] = 60.0,
) -> None:
    """Measure this engine beside its peers on this machine; prints tables."""
    with sentences():
        from engine.bench.cli import measure

        if json_file is not None:
            _check_writable(json_file)
        command = " ".join(["python -m engine", *sys.argv[1:]])
        print(measure(peers, only, json_file, repeats, quick, minutes, command, _say))


@cli.command()
def models() -> None:
    """List what can be loaded here, as JSON."""
    with sentences():
        from engine.model.registry import list_models

        print(json.dumps(list_models(), ensure_ascii=False, indent=1))


def _let_waiting_threads_sleep() -> None:
    """Effect on torch's OpenMP threads, if set before torch is imported: they sleep at barriers instead of spinning.

    The pages and a browser share the cores with the engine; with spinning threads a step then took up to 15 times as
    long, because a thread that waits kept the core from the one it waited for.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _runtime(on_progress: OnProgress, kernels: str | None = None) -> LabRuntime:
    _let_waiting_threads_sleep()
    from engine.runtime.kernels_choice import wanted_kernels
    from engine.runtime.lab import LabRuntime
    from engine.settings import settings

    return LabRuntime(settings(), on_progress, str(kernels) if kernels else wanted_kernels())


def _execute(scenario: Scenario, kernels: str | None) -> Run:
    """Load, run, return the Run. Effect: progress on stderr."""
    total_tokens = sum(request.max_tokens for request in scenario.requests)
    num_tokens = 0
    with progress() as on_progress:

        def on_step(record: StepRecord | None, deltas: Mapping[str, str]) -> None:
            nonlocal num_tokens
            num_tokens += len(record.outputs) if record else len(deltas)
            where = f"step {record.step}, " if record else ""
            on_progress("run", num_tokens / total_tokens, f"{where}{num_tokens} of {total_tokens} tokens")

        runtime = _runtime(on_progress, kernels)
        prepared = runtime.prepare(scenario)
        return runtime.run(prepared, f"run-{secrets.token_hex(6)}", on_step, lambda: False).run


def _summary(run: Run, out: Path) -> dict[str, object]:
    from engine.lab.metrics import run_metrics
    from engine.lab.savings import savings

    header = run.header
    head = {"run_id": run.run_id, "out": str(out), "model": header.model.name, "device": header.device.name}
    head |= {"policy": header.scenario["policy"], "dtype": header.dtype}
    return {**head, **dataclasses.asdict(run_metrics(run)), **savings(run)}


def _check_writable(path: Path) -> None:
    """Before the work, not after it: a run of a minute must not be lost to a misspelt folder."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; give the name of a file")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.absolute().parent}; create it first")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def progress() -> Iterator[OnProgress]:
    """A progress line on stderr while the block runs; nothing where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("starting", total=None)

        def on_progress(stage: str, fraction: float | None, message: str) -> None:
            total = None if fraction is None else 1.0
            bars.update(task, description=message or stage, total=total, completed=fraction or 0.0)

        yield on_progress


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Turn what a user can cause into one sentence on stderr and an exit code. Bugs keep their traceback."""
    from engine.server.sentences import is_for_the_user, sentence

    try:
        yield
    except typer.BadParameter as error:
        _say(error.message)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        _say("stopped")
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, OSError, MemoryError) as error:
        if not is_for_the_user(error) and isinstance(error, ValueError):
            raise
        _say(_os_sentence(error) if isinstance(error, OSError) else sentence(error))
        raise typer.Exit(USER_ERROR) from None


def _os_sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _say(message: str) -> None:
    print(f"engine: {message}" if not message.startswith("engine") else message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    cli(prog_name="python -m engine")
