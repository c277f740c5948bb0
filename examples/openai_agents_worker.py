"""A worker whose messages are questions about text files, which an agent of the OpenAI Agents SDK answers with a tool.

OPENAI_API_KEY=… python examples/openai_agents_worker.py "How many lines has README.md?"

Asks the questions given, and works until Ctrl-C, on the service at LEASEBEAT_URL, else on that of `make run`.
Needs the extra `openai-agents`. The model is that of OPENAI_DEFAULT_MODEL, at OpenAI's API, or at another one that completes chats,
which OPENAI_BASE_URL names.
"""

import os
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

from leasebeat import Client, Context, LeasedMessage, Worker
from leasebeat.bridges.openai_agents import LeaseHooks

QUEUE = "openai-agents"
LEASE_S = 120  # longer than any one turn of the model and any one tool takes


@function_tool
def count_lines(path: str) -> int:
    """Count the lines of a text file."""
    return len(Path(path).read_text().splitlines())


AGENT: Agent[None] = Agent("librarian", instructions="Answer questions about text files, in one sentence.", tools=[count_lines])


async def answer(message: LeasedMessage, context: Context) -> str:
    """Let an agent work on one question. Each turn of the model is a beat, and each tool."""
    result = await Runner.run(AGENT, message.body["question"], hooks=LeaseHooks(context))
    print(f"{message.body['question']}\n{result.final_output}\n", flush=True)
    return str(result.final_output)


def main() -> None:
    if "OPENAI_API_KEY" not in os.environ:
        sys.exit("OPENAI_API_KEY is missing: the agent's model is asked at OpenAI's API, or at OPENAI_BASE_URL")
    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)
    with Client(os.environ.get("LEASEBEAT_URL", "http://127.0.0.1:8080")) as client:
        client.put_queue(QUEUE, visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=LEASE_S / 10, progress_required=True)
        for question in sys.argv[1:]:
            client.send(QUEUE, {"question": question})
        Worker(client, QUEUE, answer, concurrency=2).run()


if __name__ == "__main__":
    main()
