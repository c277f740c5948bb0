"""Agents that keep their messages' leases by beating: at each turn of the model, at each part of its answers, around each tool."""

from leasebeat._endpoint import EndpointError
from leasebeat.agents._adapter import ProviderAdapter
from leasebeat.agents._counters import ToolCounters, ToolCounts
from leasebeat.agents._errors import (
    AgentError,
    AnswerError,
    BudgetExceededError,
    DeadlineExceededError,
    TurnLimitError,
    WorkInterruptedError,
)
from leasebeat.agents._eval_loop import EvalLoop, EvalLoopConfig, EvalRequest, EvalResult, Evaluator, Sample, Score
from leasebeat.agents._inner_loop import InnerLoop, InnerLoopConfig, Model
from leasebeat.agents._limits import Budget, BudgetTracker, Deadline, TokenUsage
from leasebeat.agents._mailbox import Mailbox, MailboxMessage
from leasebeat.agents._main_loop import MainLoop, MainLoopConfig, MainLoopRequest, MainLoopResult, TextLoop
from leasebeat.agents._openai import OpenAIAdapter
from leasebeat.agents._prompt import Prompt, PromptResponse, Resources, Tool, ToolContext, ToolHandler
from leasebeat.agents._session import Completion, Entry, Question, Session, ToolCall, ToolOutcome, ToolResult
from leasebeat.agents._tool_executor import ToolExecutor

__all__ = [
    "AgentError",
    "AnswerError",
    "Budget",
    "BudgetExceededError",
    "BudgetTracker",
    "Completion",
    "Deadline",
    "DeadlineExceededError",
    "EndpointError",
    "Entry",
    "EvalLoop",
    "EvalLoopConfig",
    "EvalRequest",
    "EvalResult",
    "Evaluator",
    "InnerLoop",
    "InnerLoopConfig",
    "Mailbox",
    "MailboxMessage",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "Model",
    "OpenAIAdapter",
    "Prompt",
    "PromptResponse",
    "ProviderAdapter",
    "Question",
    "Resources",
    "Sample",
    "Score",
    "Session",
    "TextLoop",
    "TokenUsage",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolCounters",
    "ToolCounts",
    "ToolExecutor",
    "ToolHandler",
    "ToolOutcome",
    "ToolResult",
    "TurnLimitError",
    "WorkInterruptedError",
]
