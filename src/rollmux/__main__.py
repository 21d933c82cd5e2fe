"""What the command `rollmux` calls; and `python -m rollmux`, for where that is not on the path."""

import signal


def main() -> None:
    """Runs the command line. While it is being imported, Ctrl-C ends the process without a word."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else nobody wants it to end
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rollmux.cli import app  # noqa: PLC0415

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    app(prog_name="rollmux")


if __name__ == "__main__":
    main()
