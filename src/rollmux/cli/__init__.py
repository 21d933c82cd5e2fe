"""The command line `rollmux`."""

from rollmux.cli.main import app

__all__ = ["app"]
