#!/usr/bin/env python3
"""Start rankwatch from the folder `lib` next to this file, which `python -I` does not search."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from agent.cli.main import main  # python finds it only with the new path

sys.exit(main())
