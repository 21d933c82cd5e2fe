"""`python -m rollmux`, for where the command `rollmux` is not on the path."""

from rollmux.cli import app

if __name__ == "__main__":
    app(prog_name="rollmux")
