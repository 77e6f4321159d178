"""The command ``nestedfp``. Exit status 2 and one line on the standard error: bad input; what was good is left as it was."""

import argparse
import sys

from nestedfp.checkpoint import CheckpointError
from nestedfp.cli import convert, evaluate, inspect
from nestedfp.cli.output import UsageError

EPILOG = "docs/fidelity.md shows how to read what they print."


def parser() -> argparse.ArgumentParser:
    """Return the parser of all sub-commands."""
    whole = argparse.ArgumentParser(prog="nestedfp", description="Checkpoints in the NestedFP format.", epilog=EPILOG)
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, description, add_arguments, run in (
        ("inspect", inspect.__doc__ or "", inspect.add_arguments, inspect.run),
        ("convert", convert.CONVERT, convert.add_arguments, convert.run),
        ("restore", convert.RESTORE, convert.add_arguments, convert.run),
        ("eval", evaluate.__doc__ or "", evaluate.add_arguments, evaluate.run),
    ):
        command = commands.add_parser(
            name,
            help=description.partition("\n")[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_arguments(command)
        command.set_defaults(run=run)
    return whole


def main(argv: list[str] | None = None) -> int:
    """Run a sub-command; return the exit status."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (CheckpointError, UsageError) as error:
        said = str(error)
    except OSError as error:
        where = error.filename or getattr(args, "target", args.command)  # of a full disk the system names no file
        said = f"{where}: cannot be read or written: {error.strerror or error}"
    except KeyboardInterrupt:
        print("nestedfp: interrupted; the same command goes on with what is missing", file=sys.stderr)
        return 130
    print(f"error: {said}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
