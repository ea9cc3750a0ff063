"""What importing the package switches on: static forms of PyG's operations inside programs.

The substitutions themselves live in `torchkiln.graphs.layers`; every program enters them, with or
without this package. Here PyG's neighbour searches are also made to work where its compiled
packages are missing, as they would on the original's machines.
"""

from torchkiln.graphs.layers import provide_point_layers
from torchkiln.graphs.layers._capture import static_pyg as substitutions

__all__ = ["substitutions"]

provide_point_layers()
