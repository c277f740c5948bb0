"""`ProviderAdapter`: what a loop needs of a model's provider."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from leasebeat._heartbeat import Heartbeat
from leasebeat.agents._limits import BudgetTracker, Deadline
from leasebeat.agents._prompt import Prompt, PromptResponse
from leasebeat.agents._session import Session

OutputT = TypeVar("OutputT")


class ProviderAdapter(ABC, Generic[OutputT]):
    """Brings prompts to a model. `OpenAIAdapter` is one."""

    @abstractmethod
    def evaluate(
        self,
        prompt: Prompt[OutputT],
        *,
        session: Session,
        deadline: Deadline | None = None,
        budget_tracker: BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> PromptResponse[OutputT]:
        """Work on a prompt until the model answers, and run the tools that it asks for.

        Args:
            prompt: What to ask.
            session: The conversation to continue.
            deadline: When to be done. It may be cut while the work goes on: mind it at each turn and before each tool.
            budget_tracker: Where to record tokens, and whose limits to mind.
            heartbeat: Beat it at each turn, before and after each tool, and pass it to the tools.

        Raises:
            Exception: Whatever keeps it from an answer. A `MainLoop` makes it the result of the request.
        """
