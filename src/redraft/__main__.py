"""`python -m redraft` is the command `redraft`."""

import sys


def main() -> int:
    """Run the command and return its exit code; Ctrl-C exits quietly, even while the command is being imported."""
    try:
        from redraft.cli.stopping import ctrl_c_after_imports

        with ctrl_c_after_imports():
            from redraft.cli.main import main as command

            return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
