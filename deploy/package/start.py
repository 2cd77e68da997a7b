#!/usr/bin/env python3
"""Starts rankwatch from the folder that this file is in: what `python -I` may import of it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from agent.cli.main import main  # found only now

sys.exit(main())
