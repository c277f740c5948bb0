"""Every exception of the agents.

LeasebeatError
|-- EndpointError                    the model's endpoint refused a request, or gave no usable answer; status, retry_after
`-- AgentError
    |-- DeadlineExceededError        the time for a request is up
    |-- BudgetExceededError          its tokens are used up
    |-- TurnLimitError               the model has had all its turns, and still asks for tools
    |-- AnswerError                  the model refused, or its answer was cut
    `-- WorkInterruptedError         the lease is lost, or the worker has to go: stop, and send nothing
"""

from leasebeat._errors import LeasebeatError


class AgentError(LeasebeatError):
    """The root of what goes wrong with a request to an agent."""


class DeadlineExceededError(AgentError):
    """The time for a request is up."""


class BudgetExceededError(AgentError):
    """The tokens for a request are used up."""


class TurnLimitError(AgentError):
    """The model has had all its turns, and still asks for tools."""


class AnswerError(AgentError):
    """The model refused, or its answer was cut before its end."""


class WorkInterruptedError(AgentError):
    """The work is to stop where it is, and nothing of it is to be sent: the lease is lost, or the worker has to go."""
