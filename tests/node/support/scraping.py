"""The controller's metrics as Prometheus reads them."""

from __future__ import annotations

from api_answers import raw
from prometheus_client.parser import text_string_to_metric_families


def scraped(machine):
    """{name of a sample: {labels: value}} of a real scrape."""
    page = raw(machine, b"GET /metrics HTTP/1.0\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
    return samples(page.partition("\r\n\r\n")[2])


def samples(text):
    """A page by names and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found
