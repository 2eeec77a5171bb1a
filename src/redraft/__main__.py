"""`python -m redraft` is the command `redraft`."""

import sys


def main() -> int:
    """Run the command and return its exit code; Ctrl-C ends it quietly while it is still being imported, too."""
    try:
        from redraft.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
