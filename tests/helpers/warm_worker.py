"""Python for pytest-xdist: `warm_worker.py -u -c program` runs the program in a child of the warm server."""

import sys

import warm

if __name__ == "__main__":
    sys.exit(warm.Popen([sys.executable, *sys.argv[2:]], stdin=sys.stdin, stdout=sys.stdout).wait(timeout=None))
