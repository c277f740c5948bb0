"""A worker whose messages are text files, which a LangChain chain sums up.

CHAT_MODEL=langchain_openai:ChatOpenAI python examples/langchain_worker.py README.md

Sends the files given, and works until Ctrl-C, on the service at LEASEBEAT_URL, else on that of `make run`.
Needs the extra `langchain`, and the package of the chat model that CHAT_MODEL names, which takes its key from variables of its own.
"""

import os
import sys
from pathlib import Path
from pkgutil import resolve_name

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from leasebeat import Client, Context, LeasedMessage, Worker
from leasebeat.bridges.langchain import LeaseCallbackHandler

QUEUE = "langchain"
LEASE_S = 60  # longer than the model takes for its first token
PROMPT = ChatPromptTemplate.from_template("Sum up this text in three sentences:\n\n{text}")


def sum_up(message: LeasedMessage, context: Context) -> str:
    """Work on one file. Each step of the chain is a beat, and each token of the model."""
    chain = PROMPT | resolve_name(os.environ["CHAT_MODEL"])() | StrOutputParser()
    text = Path(message.body["path"]).read_text()
    summary = "".join(chain.stream({"text": text}, {"callbacks": [LeaseCallbackHandler(context)]}))
    print(f"{message.body['path']}\n{summary}\n", flush=True)
    return summary


def main() -> None:
    if "CHAT_MODEL" not in os.environ:
        sys.exit("CHAT_MODEL is missing: the class of a chat model, for example langchain_openai:ChatOpenAI")
    with Client(os.environ.get("LEASEBEAT_URL", "http://127.0.0.1:8080")) as client:
        client.put_queue(QUEUE, visibility_timeout=LEASE_S, extension=LEASE_S, beat_interval=LEASE_S / 10, progress_required=True)
        for path in sys.argv[1:]:
            client.send(QUEUE, {"path": path})
        Worker(client, QUEUE, sum_up, concurrency=2).run()


if __name__ == "__main__":
    main()
