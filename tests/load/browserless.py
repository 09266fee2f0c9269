"""A learner without a browser: speaks Streamlit's websocket protocol on loopback, as its frontend does.

It opens pages, changes widgets and lets fragments run when the server asks for it (``auto_rerun``); it draws nothing.
What it reports is what a browser would have waited for and received. The messages are Streamlit's own protobufs, so
this file goes with the pinned Streamlit version.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

COOKIE = "token_by_token_sid"
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """One run of a page or a fragment: how long until it was whole, what came, and whether it ended well."""

    seconds: float
    num_bytes: int
    num_messages: int
    well: bool


@dataclass
class Learner:
    """One session. ``widgets``: id by key, of what the page shows; ``fragments``: interval by fragment id."""

    url: str  # ws://127.0.0.1:port
    sid: str
    page: str = ""  # the page's address below the lab's
    query: str = "lang=en"
    widgets: dict[str, str] = field(default_factory=dict)
    fragments: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # Markdown of the last answer
    title: str = ""  # its first heading

    async def open(self) -> Answer:
        """Connect and let the page run, as a browser that follows a link. Raises: OSError, TimeoutError."""
        begin_s = time.perf_counter()
        headers = {"Cookie": f"{COOKIE}={self.sid}"}
        self._socket = await websockets.connect(
            f"{self.url}/_stcore/stream", additional_headers=headers, subprotocols=["streamlit"], max_size=2**26
        )
        return await self._run(self._rerun_message(), begin_s)

    async def close(self) -> None:
        await self._socket.close()

    async def rerun(self, key: str | None = None, **value: object) -> Answer:
        """Run the page again, after setting the widget ``key`` (``string_value=...`` and so on) if one is named."""
        message = self._rerun_message()
        if key is not None:
            state = message.rerun_script.widget_states.widgets.add(id=self.widgets[key])
            for kind, given in value.items():
                if isinstance(given, list):
                    getattr(state, kind).data.extend(given)
                else:
                    setattr(state, kind, given)
        return await self._run(message, time.perf_counter())

    async def refresh(self, fragment_id: str) -> Answer:
        """Let one fragment run, as the frontend does when its interval is over."""
        message = self._rerun_message()
        message.rerun_script.fragment_id = fragment_id
        message.rerun_script.is_auto_rerun = True
        return await self._run(message, time.perf_counter())

    def _rerun_message(self) -> BackMsg:
        message = BackMsg()
        message.rerun_script.query_string = self.query
        message.rerun_script.page_name = self.page
        message.rerun_script.context_info.locale = "en-GB"
        message.rerun_script.context_info.timezone = "UTC"
        return message

    async def _run(self, message: BackMsg, begin_s: float) -> Answer:
        """Send and read until the script, or the one it gave way to, is done."""
        await self._socket.send(message.SerializeToString())
        num_bytes = num_messages = 0
        self.texts, self.title = [], ""
        if not message.rerun_script.fragment_id:  # a whole page names its fragments anew
            self.fragments.clear()
        while True:
            raw = await asyncio.wait_for(self._socket.recv(), PATIENCE_S)
            num_bytes += len(raw)
            num_messages += 1
            received = ForwardMsg.FromString(raw)
            kind = received.WhichOneof("type")
            if kind == "script_finished":
                if received.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                    well = received.script_finished != ForwardMsg.FINISHED_WITH_COMPILE_ERROR
                    return Answer(time.perf_counter() - begin_s, num_bytes, num_messages, well)
                self.fragments.clear()  # a fragment that gives way to its page: the page names them anew
            elif kind == "auto_rerun":
                self.fragments[received.auto_rerun.fragment_id] = received.auto_rerun.interval
            elif kind == "stop_auto_rerun":
                self.fragments.pop(received.stop_auto_rerun.fragment_id, None)
            elif kind == "delta":
                self._look(received.delta)

    def _look(self, delta) -> None:
        if delta.WhichOneof("type") != "new_element":
            return
        element = delta.new_element
        kind = element.WhichOneof("type")
        part = getattr(element, kind)
        if kind == "exception":
            self.errors.append(part.message)
        elif kind == "markdown":
            self.texts.append(part.body)
        elif kind == "heading":
            self.title = self.title or part.body
        widget_id = getattr(part, "id", "")
        if widget_id.startswith("$$ID-"):
            key = widget_id.split("-", 2)[2]
            self.widgets[key] = widget_id
