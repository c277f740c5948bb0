"""A worker whose messages are questions, which a Claude agent answers from the files of this folder.

ANTHROPIC_API_KEY=… python examples/claude_agent.py "Which file here is the longest?"

Asks the questions given, and works until Ctrl-C, on the service at LEASEBEAT_URL, else on that of `make run`.
Needs the extra `claude-agent-sdk`.
"""

import os
import sys

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

from leasebeat import Client, Context, LeasedMessage, Worker
from leasebeat.bridges.claude_agent_sdk import LeaseHooks

QUEUE = "claude-agent"
LEASE_S = 120  # longer than any one tool takes, as nothing beats meanwhile


async def answer(message: LeasedMessage, context: Context) -> str | None:
    """Let an agent work on one question. Each tool that it uses is a beat, and each message."""
    lease = LeaseHooks(context)
    result = None
    async with ClaudeSDKClient(ClaudeAgentOptions(hooks=lease.hooks(), allowed_tools=["Glob", "Grep", "Read"])) as client:
        await client.query(message.body["question"])
        async for event in lease.follow(client):
            if isinstance(event, ResultMessage):
                result = event.result
    print(f"{message.body['question']}\n{result}\n", flush=True)
    return result


def main() -> None:
    if "ANTHROPIC_API_KEY" not in os.environ:
        sys.exit("ANTHROPIC_API_KEY is missing: the agent's model is asked at Anthropic's API, or at ANTHROPIC_BASE_URL")
    with Client(os.environ.get("LEASEBEAT_URL", "http://127.0.0.1:8080")) as client:
        client.put_queue(QUEUE, visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=LEASE_S / 10, progress_required=True)
        for question in sys.argv[1:]:
            client.send(QUEUE, {"question": question})
        Worker(client, QUEUE, answer, concurrency=2).run()


if __name__ == "__main__":
    main()
