"""The same agent in each framework: it calls a tool some number of times, and then answers "done"."""

import asyncio
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Protocol

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import StructuredTool
from sdk.bridges.anthropic_api import AnthropicApi

from leasebeat import Context, Heartbeat
from leasebeat.bridges import claude_agent_sdk, langchain, openai_agents

Tool = Callable[[], str]
RUN_CONFIG = RunConfig(tracing_disabled=True)


class RunAgent(Protocol):
    __name__: str

    def __call__(self, tool: Tool, calls: int, source: Context | Heartbeat, lost: threading.Event | None = None) -> str: ...


# --- Claude Agent SDK: its own program, with hooks around a tool that it brings itself


def claude(tool: Tool, calls: int, source: Context | Heartbeat, lost: threading.Event | None = None) -> str:
    with AnthropicApi(tool, calls) as api:
        return asyncio.run(_follow_claude(claude_agent_sdk.LeaseHooks(source, lost=lost), api))


async def _follow_claude(lease: claude_agent_sdk.LeaseHooks, api: AnthropicApi) -> str:
    result = ""
    with tempfile.TemporaryDirectory() as folder:
        async with ClaudeSDKClient(claude_options(api, folder, hooks=lease.hooks())) as client:
            await client.query("work")
            async for message in lease.follow(client):
                if isinstance(message, ResultMessage):
                    result = str(message.result)
    return result


def claude_options(api: AnthropicApi, folder: str, **more: Any) -> ClaudeAgentOptions:
    environment = claude_environment(api, folder)
    return ClaudeAgentOptions(env=environment, cwd=folder, tools=["Bash"], allowed_tools=["Bash"], setting_sources=[], **more)


def claude_environment(api: AnthropicApi, folder: str) -> dict[str, str]:
    """For a program that knows nothing of this machine's user, and calls nobody but `api`."""
    return {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_AUTH_TOKEN": "",
        "CLAUDE_CODE_OAUTH_TOKEN": "",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": folder,
        "HOME": folder,
        "NO_PROXY": "127.0.0.1",
    }


# --- OpenAI Agents SDK


def openai(tool: Tool, calls: int, source: Context | Heartbeat, lost: threading.Event | None = None) -> str:
    model = ScriptedModel([*([function_call("work", {}, call_id=f"call-{n}")] for n in range(calls)), [assistant_message("done")]])
    agent = Agent("worker", model=model, tools=[openai_tool(tool)])
    hooks = openai_agents.LeaseHooks(source, lost=lost)
    return str(asyncio.run(Runner.run(agent, "work", hooks=hooks, max_turns=calls + 1, run_config=RUN_CONFIG)).final_output)


def openai_tool(tool: Tool) -> Any:
    return function_tool(tool, name_override="work", description_override="Work.")


# --- LangChain, sync and async


def langchain_sync(tool: Tool, calls: int, source: Context | Heartbeat, lost: threading.Event | None = None) -> str:
    return str(langchain_agent(tool, calls).invoke("work", langchain_config(source, lost)))


def langchain_async(tool: Tool, calls: int, source: Context | Heartbeat, lost: threading.Event | None = None) -> str:
    return str(asyncio.run(langchain_agent(tool, calls).ainvoke("work", langchain_config(source, lost))))


def langchain_config(source: Context | Heartbeat, lost: threading.Event | None = None) -> RunnableConfig:
    return {"callbacks": [langchain.LeaseCallbackHandler(source, lost=lost)]}


def langchain_agent(tool: Tool, calls: int) -> RunnableLambda[str, str]:
    asks = [AIMessage("", tool_calls=[{"name": "work", "args": {}, "id": f"call-{n}"}]) for n in range(calls)]
    model = FakeMessagesListChatModel(responses=[*asks, AIMessage("done")])
    work = StructuredTool.from_function(tool, name="work", description="Work.")

    def agent(question: str) -> str:
        dialogue: list[BaseMessage] = [AIMessage(question)]
        while (answer := model.invoke(dialogue)).tool_calls:
            dialogue += [answer, *(work.invoke({**call}) for call in answer.tool_calls)]
        return str(answer.content)

    async def agent_async(question: str) -> str:
        dialogue: list[BaseMessage] = [AIMessage(question)]
        while (answer := await model.ainvoke(dialogue)).tool_calls:
            dialogue += [answer, *[await work.ainvoke({**call}) for call in answer.tool_calls]]
        return str(answer.content)

    return RunnableLambda(agent, agent_async)


AGENTS: list[RunAgent] = [claude, openai, langchain_sync, langchain_async]
