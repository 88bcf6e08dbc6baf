"""torchrun, whose exit status is that of its first failed rank, without a traceback of its own.

python -m detalbert.torchrun --nproc_per_node 8 train.py --config configs/distributed8.yaml

A scheduler starts a run again after 143 and not after 2; torchrun's own status is 1 for both. A
port that is taken is 4, as whatever another try may overcome.
"""

import os
import sys

from detalbert.command import explain_missing

if __name__ == "__main__":
    explain_missing("detalbert.torchrun")

from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import get_args_parser, run

from detalbert.errors import Unavailable, first_line
from detalbert.log import fail


def main(argv: list[str]) -> int:
    """Run the ranks; return the exit status."""
    # As torchrun does, which would say so in four lines.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    args = get_args_parser().parse_args(argv)
    try:
        run(args)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        was_killed = failure.exitcode < 0  # by the signal of that number
        return 128 - failure.exitcode if was_killed else failure.exitcode
    except DistNetworkError as error:
        # Another program has the port, or the first machine does not answer.
        key = f"--master_port {args.master_port}"
        return fail("torchrun", Unavailable(first_line(error), key=key, cure="give another"))
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
