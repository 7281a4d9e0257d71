from __future__ import annotations

from metadata.etcd_layout import EtcdLayout
from metadata.model import Revision, SessionId
from segments.memory_store import MemoryStore
from tests.simulation.appointments import Recorder, Writer
from tests.simulation.etcd_model import EtcdModel


def test_a_transaction_that_changed_nothing_is_not_taken_for_the_writer_of_the_revision_that_it_was_told() -> None:
    recorder = Recorder(MemoryStore(), EtcdModel(lambda: 0.0), EtcdLayout())
    leader, controller = Writer("b2", SessionId(10)), Writer("b3", SessionId(9))
    recorder.wrote(Revision(209), leader)
    recorder.wrote(Revision(209), controller)  # it deleted a key that was gone already
    assert recorder._writers == {Revision(209): leader}
