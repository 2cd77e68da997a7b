"""`python -m agent` is `rankwatch`."""

import sys

from agent.cli.main import main

sys.exit(main())
