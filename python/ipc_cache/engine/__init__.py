"""What adapters of inference engines stand on; nothing here knows any engine by name.

A publisher loads and post-processes its model as usual, then exports it: `snapshot` before the weights are loaded,
`export` after everything, `publish_export`. An attacher builds a `skeleton`, `bind`s it to the attached weights, lets the
engine rebuild what tensors cannot carry, and asks `check_no_meta` that nothing was forgotten.
"""

from .bind import Bound, bind
from .check import check_no_meta, find_meta
from .export import Export, export, publish_export
from .key import build_key, digest, file_digest
from .skeleton import skeleton
from .structure import Structure, snapshot

__all__ = [
    "Bound", "Export", "Structure", "bind", "build_key", "check_no_meta", "digest", "export", "file_digest",
    "find_meta", "publish_export", "skeleton", "snapshot",
]  # fmt: skip
