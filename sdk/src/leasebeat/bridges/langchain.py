"""The bridge to LangChain: a callback handler that beats."""

import threading
from contextlib import suppress
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from leasebeat._context import Context
from leasebeat._errors import LeaseLostError
from leasebeat._heartbeat import Heartbeat
from leasebeat.bridges._pulse import Pulse


class LeaseCallbackHandler(BaseCallbackHandler):
    """Beats for a lease while runnables run, sync or async, and ends them once the lease is lost.

    Example::

        def handle(message: LeasedMessage, context: Context) -> str:
            return chain.invoke(message.body, {"callbacks": [LeaseCallbackHandler(context)]})

    A lost lease is raised, as the `LeaseLostError` that says why, where something begins or goes on: a chain, a model, a tool,
    a retriever, a token, a custom event. So no step is begun for nothing, also not the fallback of one that ended so, and
    what has ended keeps its result. A long tool beats by `dispatch_custom_event`.

    In an async run, beats with a `Context` are made in the event loop, as they cost microseconds; those with a `Heartbeat` in a thread.
    """

    raise_error = True  # else the manager logs what a handler raises, and goes on

    def __init__(self, source: Context | Heartbeat, *, lost: threading.Event | None = None) -> None:
        """Make the handler of one lease.

        Args:
            source: What to beat with.
            lost: Set when the lease is lost. Needed with a `Heartbeat`, which cannot tell.
        """
        self._pulse = Pulse(source, lost)
        self.run_inline = not self._pulse.may_block

    def _on_work(self, *_args: Any, **_kwargs: Any) -> None:
        self._pulse.beat()

    def _on_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Beat, but raise nothing: what ended by a loss is told of here as well, once per level, and the loss is on its way already."""
        with suppress(LeaseLostError):
            self._pulse.beat()

    on_chain_start = on_llm_start = on_chat_model_start = on_tool_start = on_retriever_start = on_agent_action = _on_work
    on_llm_new_token = on_stream_event = on_custom_event = _on_work
    on_chain_end = on_llm_end = on_tool_end = on_retriever_end = on_agent_finish = _on_end
    on_chain_error = on_llm_error = on_tool_error = on_retriever_error = _on_end
