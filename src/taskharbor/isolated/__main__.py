"""python -m taskharbor.isolated CONTROL: the zygote of a worker. With three more descriptors and a pid: one child."""

from __future__ import annotations

import sys

from taskharbor.isolated.start import main

if __name__ == "__main__":
    sys.exit(main([int(each) for each in sys.argv[1:]]))
