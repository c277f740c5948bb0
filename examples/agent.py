"""An agent that answers questions about the files of a folder.

python examples/agent.py work docs          answer questions about ./docs, until SIGTERM
python examples/agent.py ask "What is …?"   send a question, and wait for its answer

The environment says where things are: LEASEBEAT_URL (what `make run` serves, if left out), and any endpoint that speaks OpenAI's
chat completions by OPENAI_BASE_URL, OPENAI_MODEL and, if it asks for one, OPENAI_API_KEY.
"""

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leasebeat import Client, LeaseExtenderConfig
from leasebeat.agents import (
    Mailbox,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    OpenAIAdapter,
    Prompt,
    Session,
    Tool,
    ToolContext,
    ToolResult,
)

QUESTIONS, ANSWERS = "questions", "answers"
MAX_MATCHES = 50
MAX_CHARS = 20_000

Requests = Mailbox[MainLoopRequest[str], MainLoopResult[str]]


class Folder:
    """What the tools may look at, and nothing outside of it."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def files(self) -> Iterator[Path]:
        return (path.relative_to(self._root) for path in sorted(self._root.rglob("*")) if path.is_file() and not path.is_symlink())

    def read(self, path: str | Path) -> str:
        full = (self._root / path).resolve()
        if not full.is_relative_to(self._root):
            raise PermissionError(f"{path} is outside of the folder")
        return full.read_text(errors="replace")


@dataclass(frozen=True)
class SearchParams:
    words: str


@dataclass(frozen=True)
class ReadParams:
    path: str


def search(params: SearchParams, *, context: ToolContext) -> ToolResult[list[str]]:
    folder = context.resources.get(Folder)
    matches: list[str] = []
    for path in folder.files():
        context.beat()  # each file is a piece of work done
        lines = enumerate(folder.read(path).splitlines(), start=1)
        matches += [f"{path}:{number}: {line.strip()}" for number, line in lines if params.words.lower() in line.lower()]
    return ToolResult.ok(matches[:MAX_MATCHES])


def read_file(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(context.resources.get(Folder).read(params.path)[:MAX_CHARS])


def takes(name: str, description: str) -> dict[str, object]:
    """Make the schema of a tool with one argument, a text."""
    return {"type": "object", "properties": {name: {"type": "string", "description": description}}, "required": [name]}


TOOLS = (
    Tool(
        "search",
        "Find the lines of all files that hold some words.",
        search,
        parameters=takes("words", "what to look for"),
        params=SearchParams,
        beat_interval=1.0,
    ),
    Tool("read_file", "Read a file.", read_file, parameters=takes("path", "as in the results of a search"), params=ReadParams),
)


class Librarian(MainLoop[str, str]):
    def prepare(self, request: str) -> tuple[Prompt[str], Session]:
        instructions = "Answer from the files that your tools show you, in a few sentences. Name the files."
        return Prompt(request, parse=str, instructions=instructions, tools=TOOLS), Session()


def work(requests: Requests, folder: Path) -> None:
    try:
        adapter = OpenAIAdapter[str](
            os.environ["OPENAI_BASE_URL"], model=os.environ["OPENAI_MODEL"], api_key=os.environ.get("OPENAI_API_KEY")
        )
    except KeyError as missing:
        sys.exit(f"Set {missing.args[0]}: the agent needs a model, at any endpoint that speaks OpenAI's chat completions.")
    config = MainLoopConfig(deadline=600, resources={Folder: Folder(folder)}, lease_extender=LeaseExtenderConfig(interval=5))
    logging.basicConfig()
    logging.getLogger("leasebeat").setLevel(logging.INFO)
    print(f"answering questions about {folder}", flush=True)
    Librarian(adapter=adapter, requests=requests, config=config).run(visibility_timeout=60)
    for name, counts in adapter.counters.snapshot().items():
        print(f"{name}: {counts}")


def ask(requests: Requests, client: Client, question: str) -> None:
    answers = Mailbox[MainLoopResult[str], None](client, ANSWERS, read=MainLoopResult.reader(str))
    request = MainLoopRequest(question)
    requests.send(request, reply_to=ANSWERS, idempotency_key=request.request_id)
    while True:
        for message in answers.receive(wait_time_seconds=20):
            result = message.body
            message.acknowledge()
            print(result.output if result.success else f"failed: {result.error}")
            if result.request_id == request.request_id:  # the others answer questions that nobody waited for
                return


def main() -> None:
    match sys.argv[1:]:
        case [("work" | "ask") as verb, argument]:
            pass
        case _:
            sys.exit(__doc__)
    with Client(os.environ.get("LEASEBEAT_URL", "http://127.0.0.1:8080")) as client:
        client.put_queue(QUESTIONS, visibility_timeout=60, extension=60, beat_interval=5)
        client.put_queue(ANSWERS, visibility_timeout=60, extension=60, beat_interval=5)
        requests = Requests(client, QUESTIONS, read=MainLoopRequest.reader(str))
        if verb == "work":
            work(requests, Path(argument))
        else:
            ask(requests, client, argument)


if __name__ == "__main__":
    main()
