"""The main job: a dozen concurrent PySpark and PyIceberg writers load real data, one is killed, the result is proved.

Theory of operation
    The parent (:mod:`~commit_coord.demo.job`) lays out a run folder with the source data and the empty tables, and
    starts the writers (:mod:`~commit_coord.demo.writers`) as processes of their own: three PySpark drivers with four
    months each, three PyIceberg writers of reference tables, four appenders on one hot table. All wait for one file,
    ``go``. From then on parent and writers speak through the folder alone: a writer notes every acknowledged request
    id in a file that it syncs before it goes on, and tells what happens as lines of JSON that the parent follows.

    When one of the drivers has had some of its months acknowledged and not all, the parent kills it (SIGKILL, the
    whole process group) and starts it again with the same request ids.

    At the end nothing that the writers or the parent remember counts: :mod:`~commit_coord.demo.proof` compares the
    tables, read by unmodified PyIceberg and by Spark, with the source, and the history with the synced notes.
"""

from commit_coord.demo.backend import Backend
from commit_coord.demo.job import run
from commit_coord.demo.run import DemoFailed, FolderInUse
from commit_coord.local import NotInstalled

__all__ = ["Backend", "DemoFailed", "FolderInUse", "NotInstalled", "run"]
