"""The command line: `rollmux demo`, `rollmux states`."""

from rollmux.cli.main import app

__all__ = ["app"]
