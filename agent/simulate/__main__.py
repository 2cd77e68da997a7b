"""Run ``rankwatch simulate`` from a checkout: ``python -m agent.simulate``."""

import sys

from agent.simulate.cli import main

sys.exit(main(sys.argv[1:]))
