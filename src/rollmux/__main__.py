"""`python -m rollmux`, where no command of that name is on the path."""

from rollmux.cli import app

if __name__ == "__main__":
    app(prog_name="rollmux")
