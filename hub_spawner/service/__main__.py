"""`python -m hub_spawner.service`, as the Hub starts it."""

from .app import AffinodeService

AffinodeService.launch_instance()
