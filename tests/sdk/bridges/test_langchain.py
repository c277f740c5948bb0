"""What is particular to LangChain."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun, dispatch_custom_event
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from sdk.bridges.agents import langchain_config

from leasebeat import Heartbeat, LeaseLostError


def counting() -> tuple[Heartbeat, list[float]]:
    heartbeat, beats = Heartbeat(), list[float]()
    heartbeat.add_callback(lambda: beats.append(heartbeat.elapsed()))
    return heartbeat, beats


class Reader:
    """Takes tokens, and loses the lease after the twentieth."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.lost = threading.Event()

    def take(self, chunk: AIMessageChunk) -> None:
        self.tokens.append(str(chunk.content))
        if len(self.tokens) == 20:
            self.lost.set()

    def read(self, chunks: Iterator[AIMessageChunk]) -> None:
        for chunk in chunks:
            self.take(chunk)

    async def read_async(self, chunks: AsyncIterator[AIMessageChunk]) -> None:
        async for chunk in chunks:
            self.take(chunk)


def test_each_token_is_a_beat_and_a_loss_ends_the_stream() -> None:
    reader, (heartbeat, beats) = Reader(), counting()
    with pytest.raises(LeaseLostError):
        reader.read(FakeListChatModel(responses=["x" * 100]).stream("work", langchain_config(heartbeat, reader.lost)))
    assert len(reader.tokens) == 20
    assert len(beats) > 20


async def test_each_token_of_an_async_stream_is_a_beat_and_a_loss_ends_it() -> None:
    reader, (heartbeat, beats) = Reader(), counting()
    with pytest.raises(LeaseLostError):
        await reader.read_async(FakeListChatModel(responses=["x" * 100]).astream("work", langchain_config(heartbeat, reader.lost)))
    assert len(reader.tokens) == 20
    assert len(beats) > 20


def lose(lost: threading.Event) -> RunnableLambda[str, str]:
    def step(text: str) -> str:
        lost.set()
        return text

    return RunnableLambda(step)


def test_a_loss_reaches_the_caller_once_through_every_level() -> None:
    lost = threading.Event()
    model = FakeListChatModel(responses=["done"])
    chain = RunnableLambda((lose(lost) | model).invoke) | RunnableLambda(str)
    with pytest.raises(LeaseLostError) as caught:
        chain.invoke("work", langchain_config(Heartbeat(), lost))
    assert caught.value.__context__ is None


def test_no_fallback_and_no_retry_begins_once_the_lease_is_lost() -> None:
    lost = threading.Event()
    begun: list[str] = []

    def note(text: str) -> str:
        begun.append(text)
        return text

    risky = (lose(lost) | RunnableLambda(note)).with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
    with pytest.raises(LeaseLostError):
        risky.with_fallbacks([RunnableLambda(note)]).invoke("work", langchain_config(Heartbeat(), lost))
    assert begun == []


def test_a_chain_that_has_ended_keeps_its_result() -> None:
    lost = threading.Event()
    assert lose(lost).invoke("done", langchain_config(Heartbeat(), lost)) == "done"
    assert lost.is_set()


def test_a_tool_that_fails_raises_its_own_error_though_the_lease_is_lost() -> None:
    lost = threading.Event()

    def fail() -> str:
        lost.set()
        raise OSError("disk full")

    heartbeat, beats = counting()
    with pytest.raises(OSError, match="disk full"):
        StructuredTool.from_function(fail, description="Fail.").invoke({}, langchain_config(heartbeat, lost))
    assert len(beats) == 2


def test_a_long_tool_beats_by_custom_events() -> None:
    heartbeat, beats = counting()

    def work() -> str:
        before = len(beats)
        for number in range(5):
            dispatch_custom_event("page", number)
        return str(len(beats) - before)

    assert StructuredTool.from_function(work, description="Work.").invoke({}, langchain_config(heartbeat)) == "5"


class Shelf(BaseRetriever):
    on_look: Callable[[], object]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:  # noqa: ARG002
        self.on_look()
        return [Document(query)]


def test_a_retriever_beats_and_does_not_begin_once_the_lease_is_lost() -> None:
    lost = threading.Event()
    looks: list[int] = []
    heartbeat, beats = counting()
    shelf = Shelf(on_look=lambda: looks.append(len(beats)))
    shelf.invoke("work", langchain_config(heartbeat, lost))
    assert (looks, len(beats)) == ([1], 2)
    lost.set()
    with pytest.raises(LeaseLostError):
        shelf.invoke("work", langchain_config(heartbeat, lost))
    assert looks == [1]
