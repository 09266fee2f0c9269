"""The figures of the prefix caching lesson: the tree to scale, what was found and computed, who was served when.

Pure functions of plain numbers read from Runs elsewhere. In the tree a block in use is solid, a shared one is crossed,
a cached one dotted; found is solid and computed hatched everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.lab.prefix_tree import Node
from pages._ui import palette
from pages._ui.charts import frame

State = Literal["in_use", "shared", "cached"]
COLOURS = {"none": palette.GREY, "hash": palette.PURPLE, "radix": palette.SKY, "aware": palette.DECODE}
SYMBOLS = {"none": "x", "hash": "diamond", "radix": "square", "aware": "circle"}
_LOOK: Mapping[State, tuple[str, str]] = {
    "in_use": (palette.DECODE, ""),
    "shared": (palette.VERMILION, "x"),
    "cached": (palette.BLUE, "."),
}
_LONGEST_LABEL = 14


@dataclass(frozen=True)
class Bar:
    """A stretch of the tree in one state: positions [start, end) in a lane. ``label`` says who has read it."""

    node: int
    start: int
    end: int
    lane: float
    state: State
    label: str


def bars(nodes: Sequence[Node], block_size: int) -> list[Bar]:
    """The tree as bars: a lane for each leaf, a node in the middle of its children. Pure."""
    lanes = _lanes(nodes)
    found = []
    for index, node in enumerate(nodes):
        begin = 0
        for end in range(1, node.num_blocks + 1):
            if end < node.num_blocks and state_of(node.users[end]) == state_of(node.users[begin]):
                continue
            at = [node.start + place * block_size for place in (begin, end)]
            found.append(Bar(index, *at, lanes[index], state_of(node.users[begin]), ", ".join(node.readers)))
            begin = end
    return found


def state_of(users: Sequence[str]) -> State:
    """How a block with these users is drawn. Pure."""
    return "cached" if not users else "in_use" if len(users) == 1 else "shared"


def _lanes(nodes: Sequence[Node]) -> list[float]:
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.parent is not None:
            children.setdefault(node.parent, []).append(index)
    lanes = [0.0] * len(nodes)
    next_lane = 0
    for index in range(len(nodes)):  # parents stand before their children, so leaves are met in drawing order
        if index not in children:
            lanes[index] = next_lane
            next_lane += 1
    for index in reversed(range(len(nodes))):
        if index in children:
            lanes[index] = sum(lanes[child] for child in children[index]) / len(children[index])
    return lanes


def tree(nodes: Sequence[Node], block_size: int, longest: int, words: Mapping[str, str]) -> go.Figure:
    """The tree from left to right: the length of a bar is its tokens, lines lead from a node to its children. Pure."""
    figure = go.Figure()
    drawn = bars(nodes, block_size)
    lanes = _lanes(nodes)
    xs: list[float | None] = []
    ys: list[float | None] = []
    for index, node in enumerate(nodes):
        if node.parent is not None:
            xs += [node.start, node.start, None]
            ys += [lanes[node.parent], lanes[index], None]
    figure.add_scatter(
        x=xs, y=ys, mode="lines", line={"color": palette.GREY, "width": 2}, hoverinfo="skip", showlegend=False
    )
    for state, (colour, shape) in _LOOK.items():
        mine = [bar for bar in drawn if bar.state == state]
        figure.add_bar(
            orientation="h",
            base=[bar.start for bar in mine],
            x=[bar.end - bar.start for bar in mine],
            y=[bar.lane for bar in mine],
            width=0.62,
            name=words[state],
            marker={
                "color": colour,
                "line": {"color": colour, "width": 2},
                "pattern": {"shape": shape, "fillmode": "replace" if shape else "overlay", "fgcolor": colour},
            },
            customdata=[[bar.start, bar.end - 1, bar.label] for bar in mine],
            hovertemplate="%{customdata[0]}–%{customdata[1]}: %{customdata[2]}<extra>" + words[state] + "</extra>",
            showlegend=True,
        )
    ends = [max(b.end for b in drawn if b.node == index) for index in range(len(nodes))]
    leaves = [i for i in range(len(nodes)) if all(node.parent != i for node in nodes)]
    figure.add_scatter(
        x=[ends[i] for i in leaves],
        y=[lanes[i] for i in leaves],
        mode="text",
        text=[_short(nodes[i].readers) for i in leaves],
        textposition="middle right",
        textfont={"size": 14},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    frame(figure, height=150 + 34 * max(len(leaves), 3), x=words["x_position"], y="")
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(range=[-2, 1.3 * longest])
    figure.update_yaxes(showticklabels=False, showgrid=False, zeroline=False, range=[max(len(leaves), 3) - 0.4, -0.6])
    return figure


def _short(readers: Sequence[str]) -> str:
    text = " " + ", ".join(readers)
    return text if len(text) <= _LONGEST_LABEL else f" {readers[0]} … {readers[-1]}"


def totals(names: Sequence[str], found: Sequence[int], computed: Sequence[int], words: Mapping[str, str]) -> go.Figure:
    """Prompt tokens of each run, found and computed, as stacked bars from one zero. Pure."""
    figure = go.Figure()
    for kind, values, colour, shape in (
        ("computed", computed, palette.PREFILL, palette.HATCH),
        ("found", found, palette.GREEN, ""),
    ):
        figure.add_bar(
            orientation="h",
            y=list(names),
            x=list(values),
            name=words[kind],
            marker={
                "color": colour,
                "line": {"color": colour, "width": 1.5},
                "pattern": {"shape": shape, "fillmode": "replace", "fgcolor": colour, "solidity": 0.4},
            },
            hovertemplate="%{y}: %{x}<extra>" + words[kind] + "</extra>",
        )
    frame(figure, height=310, x=words["x_tokens"], y="")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return figure


def served(
    orders: Mapping[str, Sequence[str]],
    found: Mapping[str, Sequence[int]],
    prompts: Mapping[str, Sequence[int]],
    words: Mapping[str, str],
) -> go.Figure:
    """Requests in the order in which they were let in: what each found and computed. One row per run. Pure."""
    figure = make_subplots(
        rows=len(orders), cols=1, vertical_spacing=0.2, subplot_titles=[words[f"part_{part}"] for part in orders]
    )
    for row, (part, names) in enumerate(orders.items(), start=1):
        computed = [whole - hit for whole, hit in zip(prompts[part], found[part], strict=True)]
        for kind, values, colour, shape in (
            ("found", found[part], palette.GREEN, ""),
            ("computed", computed, palette.PREFILL, palette.HATCH),
        ):
            figure.add_bar(
                x=list(names),
                y=list(values),
                name=words[kind],
                marker={
                    "color": colour,
                    "line": {"color": colour, "width": 1.5},
                    "pattern": {"shape": shape, "fillmode": "replace", "fgcolor": colour, "solidity": 0.4},
                },
                hovertemplate="%{x}: %{y}<extra>" + words[kind] + "</extra>",
                legendgroup=kind,
                showlegend=row == 1,
                row=row,
                col=1,
            )
    frame(figure, height=190 + 170 * len(orders), x="", y=words["x_tokens"])
    figure.update_layout(barmode="stack", legend={"y": 1.08}, margin={"t": 60})
    figure.update_xaxes(type="category")
    figure.update_xaxes(title_text=words["x_order"], row=len(orders), col=1)
    return figure


def times(
    names: Sequence[str], ms: Mapping[str, Sequence[float | None]], words: Mapping[str, str], y: str
) -> go.Figure:
    """A time of every request in each run, as points: symbol and colour tell the runs apart. Pure."""
    figure = go.Figure()
    for part, values in ms.items():
        name = words[f"part_{part}"]
        figure.add_scatter(
            x=list(names),
            y=list(values),
            mode="lines+markers",
            name=name,
            line={"color": COLOURS[part], "width": 1.5, "dash": "dot"},
            marker={"symbol": SYMBOLS[part], "size": 11, "color": COLOURS[part]},
            hovertemplate="%{x}: %{y:.3g} ms<extra>" + name + "</extra>",
        )
    frame(figure, height=360, x=words["x_request"], y=y)
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    return figure
