"""``python -m kernels report``: what each Triton kernel costs on each target, compiled here and now, without a GPU.

Markdown to stdout by default, ``--json`` for programs. Exit code 1 if a kernel spills, does not fit or breaks a claim;
2 with one sentence where kernels cannot be compiled.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@cli.callback()
def main() -> None:
    """The project's kernels."""


@cli.command()
def report(
    as_json: Annotated[bool, typer.Option("--json", help="One object per compiled kernel.")] = False,
    target: Annotated[list[int] | None, typer.Option(help="A compute capability: 80, 90 or 120. Default: all.")] = None,
) -> None:
    """Registers, spills, shared memory, load width, bytes and FLOPs of every kernel."""
    from kernels.aot import AotError

    try:
        from kernels import report as made
        from kernels.aot import require_compiler

        require_compiler()
        unknown = [arch for arch in target or () if arch not in made.TARGETS]
        if unknown:
            raise AotError(f"target is {unknown[0]}; allowed: {', '.join(str(arch) for arch in made.TARGETS)}")
        lines = made.compile_report(tuple(target or made.TARGETS))
    except AotError as error:
        typer.echo(f"kernels: {error}", err=True)
        raise typer.Exit(2) from None
    rows = made.as_rows(lines)
    typer.echo(json.dumps(rows, indent=1) if as_json else made.as_markdown(rows))
    found = [problem for line in lines for problem in made.problems(line)]
    for problem in found:
        typer.echo(f"kernels: {problem}", err=True)
    raise typer.Exit(1 if found else 0)


if __name__ == "__main__":
    cli(prog_name="python -m kernels")
