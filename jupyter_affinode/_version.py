"""The version of the whole project; package.json is held to the same by the tests."""

__version__ = "0.1.0"
