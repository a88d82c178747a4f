"""`sfr-cl tune`: one value per strategy, chosen on data held out of the training data."""

import argparse

from sfr_cl.errors import ArgumentError

from ..harness import options
from .run import add_shared_arguments, add_strategies, plan

COMMAND = "tune"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl tune`."""
    add_shared_arguments(parser)
    which = parser.add_mutually_exclusive_group()
    add_strategies(which)
    which.add_argument(
        "--all",
        action="store_const",
        const=None,
        dest="strategies",
        help="every strategy that can do the scenario, which is the default",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the networks and of the data held out (default: %(default)s)",
    )
    parser.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help="try every value on the first N tasks (default: all)",
    )
    parser.add_argument(
        "--then-all",
        action="store_true",
        help="with --tasks, then try the better half on all tasks, and choose among these",
    )


def run(arguments: argparse.Namespace) -> int:
    """Try every value of every strategy's grid; write the settings: the exit code."""
    if arguments.then_all and arguments.tasks is None:
        raise ArgumentError(
            "expected --tasks with --then-all, got none: give the number of tasks that every value "
            "is tried on first"
        )
    options.check_seeds([arguments.seed])
    arguments.seeds = [arguments.seed]
    cases = plan(arguments)

    from . import scenarios, settings, tune

    scenarios.check_tasks(cases[0].data, arguments.tasks)
    earlier = arguments.out / settings.file_name(cases[0].data.name, cases[0].scenario)
    if arguments.resume and arguments.settings is None and earlier.exists():
        arguments.settings = earlier  # what was chosen for other strategies stays
    content = settings.read(arguments.data, cases[0].scenario, arguments.settings)
    return tune.run(
        cases,
        content,
        arguments.out,
        COMMAND,
        tasks=arguments.tasks,
        then_all=arguments.then_all,
        resume=arguments.resume,
    )
