"""Test work queues in the synchronous client, on a cluster in memory."""

from __future__ import annotations

import threading

import pytest

from liftpy.client import LeaseLostError, QueueOptions
from liftpy.errors import ConfigError, NotFoundError
from liftpy.testing.memory import memory_cluster


def test_sync_queue_record_settled_twice_raises_lease_lost() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        with pytest.raises(NotFoundError):
            client.queue("jobs", "w")
        client.create_stream("jobs", "jobs")
        client.create_stream("dead", "dead")
        for number in range(6):
            client.publish("jobs", b"%d" % number)
        options = QueueOptions(ack_wait_s=600, dead_letters="dead")
        with client.queue("jobs", "w", options=options) as queue:
            first, second, bad, later = queue.take(4)
            assert [job.record.value for job in (first, second, bad, later)] == [b"0", b"1", b"2", b"3"]
            assert (first.key.stream, first.deliveries, first.until_ns > 0) == ("jobs", 1, True)
            first.ack()
            queue.ack([first, second])
            bad.extend()
            queue.extend([bad])
            bad.reject("broken")
            later.nack(3600)
            with pytest.raises(LeaseLostError):
                queue.nack([later])
            with pytest.raises(ConfigError):
                queue.reject([later], "")
            seen = []
            for job in queue:
                seen.append(job.record.value)
                job.ack()
                if len(seen) == 2:
                    break
            assert seen == [b"4", b"5"], "what was rejected went where it belongs on the way"
            assert queue.take(1, timeout_s=0.0) == []
            assert queue.counters["buried"] == 1
            assert [record.value for record in client.consume("dead", until="end")] == [b"2"]
        assert list(queue) == [], "it is closed"


def test_sync_queue_iteration_ends_on_close_in_another_thread() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("jobs", "jobs")
        queue = client.queue("jobs", "w")
        found: list[object] = []
        reading = threading.Thread(target=lambda: found.extend(queue))
        reading.start()
        queue.close()
        reading.join(30)
        assert not reading.is_alive()
        assert found == []
