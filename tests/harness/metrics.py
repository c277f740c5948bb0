"""The service's metrics as numbers."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness.api import Api

Labels = dict[str, str]


def samples(api: Api, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the values of one metric of ours by its labels."""
    answer: httpx.Response = api.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return {
        tuple(sorted((label, text) for label, text in sample.labels.items() if not label.startswith("otel_"))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == name
    }


def value(api: Api, name: str, **labels: str) -> float:
    """Return the value under exactly these labels, 0 if there is none yet."""
    return samples(api, name).get(tuple(sorted(labels.items())), 0)
