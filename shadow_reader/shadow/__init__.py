"""What reads: model, state on the grid, forks, lease, reader loop. Knows no database.

OpenMP workers that spin while they wait starve everything else on a small CPU, and the reader with
it. Their wait policy counts from the first import of torch on, so it is set before any module of
this package can import it; whoever set it otherwise keeps it.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
