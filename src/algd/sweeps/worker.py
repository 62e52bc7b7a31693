"""A process of its own for one call: `python -m algd.sweeps.worker THREADS`.

The function and its arguments come in through standard input, what it returns goes out through
standard output. Nothing heavy is imported before the process is bound to its cores.
"""

import os
import pickle
import signal
import sys
from typing import IO

from algd.sweeps.cores import claimed_cores


def main() -> None:
    """Call, answer, end."""
    # Ctrl-C reaches every process of a terminal; whoever started this one tells it to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer: IO[bytes] = os.fdopen(os.dup(1), "wb")
    # What libraries print goes to the log.
    os.dup2(2, 1)
    # What whoever started this can import, and nothing else of the folder they stand in.
    sys.path[:] = pickle.load(sys.stdin.buffer)
    with claimed_cores(int(sys.argv[1])):
        function, arguments = pickle.load(sys.stdin.buffer)
        result = function(*arguments)
    pickle.dump(result, answer)
    answer.flush()


if __name__ == "__main__":
    main()
