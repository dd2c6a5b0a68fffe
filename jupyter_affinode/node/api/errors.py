"""The API's error."""

from __future__ import annotations

from ..model.reasons import Refusal


class ApiError(Exception):
    """A request that is not served; becomes the JSON error."""

    def __init__(self, status: int, slug: Refusal, message: str):
        super().__init__(message)
        self.status, self.slug, self.message = status, slug, message
