"""`python -m wq_cli` is `wq`."""

import sys

from wq_cli.app import main

sys.exit(main())
