"""A folder that lives as long as the object that stands for it."""

import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryFolder:
    """A new folder, removed when nobody holds this object any more, or at the end of the process.

    >>> folder = TemporaryFolder(); path = folder.path; del folder
    >>> path.exists()
    False
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ebmcal-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
