"""`python -m agent` is `rankwatch`."""

import sys

from agent.cli import main

sys.exit(main())
