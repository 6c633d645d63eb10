"""All decoders: what takes bytes or text from the network, from the disk or from users.

``covers`` of each names the functions that it runs, as ``tests.fuzz.found`` finds them in the source; ``ELSEWHERE`` those that are not
fuzzed here, and why. A test holds both against the source.
"""

from __future__ import annotations

from tests.fuzz import disk, groups, metadata, network, texts
from tests.fuzz.decoder import Decoder


def all_decoders() -> list[Decoder]:
    """Every one of them."""
    return [*network.decoders(), *metadata.decoders(), *disk.decoders(), *texts.decoders(), *groups.decoders()]


_OF_ONE_NODE = "what a process of the same node says, in a frame that was checked, tests/unit/wire/test_worker_frames.py"
ELSEWHERE = {
    "liftpy.core.backup.manifest:decode_manifest": "tests/unit/backup/test_backup_files.py flips each bit, and writes some by hand",
    "sidecar.bench.systems:DelayRelay.ports": "reads the first line of its own child process",
    "liftpy.core.backup.manifest:_from_json": "a part of decode_manifest",
    "sidecar.backup.inspect:_running_backups": "what is no answer counts as not known; tests/unit/backup/test_backup_files.py",
    "sidecar.cli.events:EventPages._stored_pages": "what nodes do not write is left to their memory; tests/unit/cli/test_events_command.py",
    "liftpy.client.progress:decode_answer": "decode_read_response, and checks that tests/unit/client/test_forged_answers.py tries",
    "liftpy.core.metadata.controller.feature_levels:levels_answer": "reads an answer that apply has kept; tests/unit/metadata/test_feature_levels.py",
    "liftpy.core.publish.dedup_window:RecentIds.restore": "a part of a state file, tests/unit/publish/test_state_file.py",
    "liftpy.core.publish.dedup_window:_decode": "a part of a state file, tests/unit/publish/test_state_file.py",
    "liftpy.core.publish.last_per_subject:_decode": "a part of a state file, tests/unit/publish/test_state_file.py",
    "liftpy.core.publish.log_state:_decode_losses": "a part of a state file, tests/unit/publish/test_state_file.py",
    "liftpy.core.publish.producer_state:Producers.restore": "a part of a state file, tests/unit/publish/test_state_file.py",
    "liftpy.core.publish.producer_state:_decode": "a part of a state file, tests/unit/publish/test_state_file.py",
    "liftpy.core.wire.batch:few_headers": "tests/unit/wire/test_batch.py compares it with the columns, and damages each number",
    "liftpy.core.wire.batch:_texts": "a part of few_headers",
    "liftpy.core.services.rules:parameter_in": "reads a word of a command line",
    "sidecar.cli.service:read_parameters": "reads an operator's file for json.loads",
    "sidecar.cli.service:_RunGroup.parse_args": "reads a command line",
    "liftpy.core.wire.partitioner:partitions_of": "hashes keys; tests/unit/client/test_producer_partitions.py compares it with the plain form",
    "liftpy.core.wire.partitioner:hashes_of_column": "of a column; tests/unit/spark/test_spark_stats.py compares it with the plain form",
    "liftpy.spark.sink_rows:bytes_of": "Arrow's own buffers, tests/unit/spark/test_spark_sink.py",
    "liftpy.spark.pipelines.tables:_check_layout": "a schema that deltalake encodes, tests/unit/spark/test_pipeline_foreign_commits.py",
    "liftpy.spark.pipelines.tables:parse_file": "one regular expression, tests/unit/spark/test_pipeline_archive.py",
    "liftpy.spark.pipelines.archive_writer:_range_in_file": "calls load_json; tests/unit/spark/test_pipeline_archive.py has other files",
    "liftpy.core.base.strict_json:load_json": "what reads JSON calls it",
    "liftpy.nats.parser:StrictParser.parse": "tests.unit.transport.parser_fuzz compares it with a plain reading of the protocol",
    "liftpy.nats.transport:Transport.parse_errors": "counts",
    "liftpy.client.metadata_requests:MetadataRequests._decode": "calls frames.decode, with one error of its own",
    "liftpy.client.admin_requests:object_of": "JSON for people, of any form",
    "sidecar.cli.node_reports:publish_probe": "an ack as JSON, of a command that ends either way",
    "liftpy.core.metadata.controller.cluster_events:events_of": "of entries that the state machine has decoded and applied before",
    "liftpy.core.metadata.controller.cluster_events:_request_events": "of its own answers to them",
    "sidecar.status.status_api:_change_level": "two fields, tried out in tests/unit/runtime/test_logs.py",
    "liftpy.spark.source:LiftDataSource._parse_options": "calls SourceOptions.parse",
    "liftpy.core.metadata.placement.policies:_Ranking._hashes": "its own digests",
    "liftpy.testing.memory.group:SingleLogGroup.apply": "reads an answer of its own state machine",
    "liftpy.testing.memory.nats:NatsSession._command": "what a client in the same process has written",
    "liftpy.testing.services:_from_json": "what a process and its own child process say to each other",
    "liftpy.core.groups.machine:GroupMachine.restore": "a snapshot whose digest was checked, tests/unit/groups",
    "liftpy.core.log.arrow:_decode_text": "one entry of a column of a batch that was parsed; replaces what is not UTF-8",
    "liftpy.core.publish.standby:StandbyReplay._decode_messages": "hands messages to MessageDecoder, see publishes",
    "sidecar.partition.combined_fetches:FetchCombiner.decode_question": "calls frames.parse, see frame QuietFetches",
    "liftpy.core.wire.batch:claimed_size_bytes": "one number of a header; tests/unit/log/test_damage_detection.py flips its bits",
    "liftpy.core.wire.batch:reach": "of a batch that was parsed",
    "liftpy.core.wire.filters:pick_entries": "of a batch that was parsed; meanings.check_kept",
    "liftpy.core.wire.filters:_is_one_of": "of a batch that was parsed; meanings.check_kept",
    "liftpy.spark.lag:_sources": "what Spark says of its own query, tests/unit/spark/test_spark_lag.py",
    "liftpy.spark.lag:_offsets": "the same",
    "liftpy.spark.lag:lag_listener": "the same",
    "sidecar.transport.ingest_connection:IngestConnection._parse": "hands pieces to the parser, see StrictParser.parse",
    "sidecar.transport.ingest_connection:IngestConnection._parse_piece": "the same",
    "sidecar.bench.cases:_at_rate": "what its own child process says",
    "sidecar.bench.cases:measured_together": "what its own child processes say",
    "sidecar.dev.demo_steps:_ask": "the demo's own publisher",
    "sidecar.dev.demo_steps:compute_by_spark": "the demo's own file",
    "sidecar.dev.cluster:DevNode._process_stdout": "a child's first line",
    "sidecar.dev.nats_server:_port_in": "nats-server's file of ports",
    "liftpy.core.metadata.controller.quorum_member:QuorumMember._controllers_answer": "an answer of the own image's window",
    "sidecar.quorum.library:RaftCore._SyncObj__changeCluster": "calls change_in first, which refuses",
    "sidecar.quorum.peer_sessions:PeerSessions._same_list": "of a frame that was parsed, tests/unit/quorum/test_controller_list_in_log.py",
    "liftpy.core.wire.worker_frames:FrameReader.feed": "tests/unit/wire/test_worker_frames.py flips each byte",
    "sidecar.node.worker_node:WorkerNode._process_quiet_fetches": _OF_ONE_NODE,
    "sidecar.node.worker_node:WorkerNode._process_frame": _OF_ONE_NODE,
    "sidecar.node.worker_node:WorkerNode._send_status": _OF_ONE_NODE,
    "sidecar.node.worker_node:main": _OF_ONE_NODE,
    "sidecar.workers.workers:WorkerHandle._process_frame": _OF_ONE_NODE,
    "sidecar.workers.workers:WorkerHandle.request_status": _OF_ONE_NODE,
    "sidecar.workers.workers:failure_of": _OF_ONE_NODE,
    "sidecar.workers.workers:WorkerHandle.stop": _OF_ONE_NODE,
    "sidecar.workers.workers:Workers.wait_until_recovered": _OF_ONE_NODE,
    "sidecar.workers.workers:Workers.worker_proposes": _OF_ONE_NODE,
    "sidecar.workers.workers:WorkerCombinedFetches._ask": _OF_ONE_NODE,
    "sidecar.node.worker_node:RelayedGroup.process_answer": _OF_ONE_NODE,
    "sidecar.node.worker_node:RelayedGroup.apply_entry": _OF_ONE_NODE,
}
