"""The controller's settings, each declared once.

A setting is one dataclass field in `policy.py` or `controller.py`. Traits, command-line options, the settings of the
server extension, the API's schema and `docs/settings.md` are generated from it.
"""
