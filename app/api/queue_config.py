"""A queue's configuration between the wire and the table: the rules it must keep, the advice on it, and how it is shown."""

from typing import Any

from app.api import schemas
from app.store.figures import Figures
from app.store.models import STATUSES
from app.store.queues import StoredQueue


def broken_rule(queue: str, config: schemas.QueueConfig) -> str | None:
    """Return the rule that a configuration breaks. Under the first a worker that beats could lose its lease (seed 001, calibration)."""
    if config.extension_enabled and config.beat_interval >= config.extension / 2:
        return (
            f"beat_interval < extension / 2 must hold, so that extensions come before the expiry: "
            f"beat_interval is {config.beat_interval:g}, extension / 2 is {config.extension / 2:g}."
        )
    if config.backoff.initial > config.backoff.max:
        return (
            f"backoff.initial <= backoff.max must hold: backoff.initial is {config.backoff.initial:g}, "
            f"backoff.max is {config.backoff.max:g}."
        )
    if config.adaptive_bounds.min > config.adaptive_bounds.max:
        return (
            f"adaptive_bounds.min <= adaptive_bounds.max must hold: adaptive_bounds.min is {config.adaptive_bounds.min:g}, "
            f"adaptive_bounds.max is {config.adaptive_bounds.max:g}."
        )
    if config.dead_letter_queue == queue:
        return "dead_letter_queue is the queue itself. Leave it out to keep its failed messages here."
    return None


def _warnings(config: schemas.QueueConfig) -> list[str]:
    """Name the settings that work but are unlikely to be meant (seeds 001 and 003)."""
    warnings = []
    if config.extension > config.visibility_timeout:
        warnings.append("extension is longer than visibility_timeout: a beat lengthens a lease beyond its first length.")
    if config.beat_interval > config.visibility_timeout / 5:
        warnings.append("beat_interval is more than a fifth of visibility_timeout: about a tenth leaves room for lost beats.")
    if config.max_lease < config.visibility_timeout:
        warnings.append("max_lease is shorter than visibility_timeout, and cuts every lease short.")
    return warnings


def columns_of(config: schemas.QueueConfig) -> dict[str, Any]:
    """Lay a configuration out as columns of the table `queue`."""
    columns = config.model_dump(exclude={"backoff", "adaptive_bounds", "dead_letter_queue", "paused"})
    columns |= {f"backoff_{name}": value for name, value in config.backoff.model_dump().items()}
    columns |= {"adaptive_min": config.adaptive_bounds.min, "adaptive_max": config.adaptive_bounds.max}
    if not config.adaptive:
        columns |= {"derived_lease": None, "derived_samples": None}
    return columns if config.paused is None else columns | {"paused": config.paused}


def queue_view(stored: StoredQueue, figures: Figures) -> schemas.Queue:
    """Shape a queue as `schemas.Queue`, with the newest background count of its messages."""
    queue = stored.queue
    plain = {name: getattr(queue, name) for name in schemas.QueueConfig.model_fields if hasattr(queue, name)}
    config = schemas.QueueConfig(
        **plain,
        backoff=schemas.Backoff(**{name: getattr(queue, f"backoff_{name}") for name in schemas.Backoff.model_fields}),
        adaptive_bounds=schemas.Bounds(min=queue.adaptive_min, max=queue.adaptive_max),
        dead_letter_queue=stored.dead_letter_queue,
    )
    return schemas.Queue(
        **dict(config),
        name=queue.name,
        created_at=queue.created_at,
        updated_at=queue.updated_at,
        derived=_derived(stored),
        figures=_figures(queue.id, figures),
        warnings=_warnings(config),
    )


def _figures(queue_id: int | None, figures: Figures) -> schemas.QueueFigures | None:
    counts = figures.of_queue(queue_id) if queue_id else None
    if counts is None or figures.as_of is None:
        return None
    return schemas.QueueFigures(as_of=figures.as_of, **{status: counts.messages[status] for status in STATUSES})


def _derived(stored: StoredQueue) -> schemas.DerivedTimes | None:
    lease = stored.queue.derived_lease
    if lease is None:
        return None
    return schemas.DerivedTimes(
        visibility_timeout=lease, beat_interval=lease / 10, sweep_interval=lease / 5, samples=stored.queue.derived_samples or 0
    )
