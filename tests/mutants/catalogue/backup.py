"""Bugs in backups, restores and the rescue of a metadata group."""

from __future__ import annotations

from tests.mutants.mutant import rows

_STAGING = ("tests/unit/backup/test_staging.py",)
_FILES = ("tests/unit/backup/test_backup_files.py",)
_RESCUE = ("tests/unit/raft/test_rescue.py",)

MUTANTS = [
    *rows(
        "sidecar/cli/backup_metrics.py",
        (
            "the newest is one that is not whole",
            "if one.manifest is not None and not one.faults]",
            "if one.manifest is not None]",
            "no alert while nothing can be restored",
        ),
        ("the oldest counts", "whole[-1] if whole", "whole[0] if whole", "an alert for ever, whatever is backed up"),
        (
            "a store's password is shown",
            'parts.netloc.rpartition("@")[2]',
            "parts.netloc",
            "whoever sees the metrics can write backups",
        ),
        tests=("tests/unit/backup/test_backup_metrics.py",),
    ),
    *rows(
        "liftpy/backup/manifest.py",
        (
            "a manifest may be written anyhow",
            "    if encode_manifest(manifest) != data:\n",
            "    if not data:\n",
            "a flipped bit of a manifest is not found",
        ),
        (
            "another format is read",
            'if said["format"] != FORMAT:',
            'if said["format"] < FORMAT:',
            "a newer backup is half understood",
        ),
        ("pieces may overlap", "piece.end > end or following < piece.end:", "piece.end > end:", "records are restored twice"),
        (
            "pieces may end early",
            "if pieces and (pieces[-1].end != end or",
            "if pieces and (",
            "records are missing after a restore",
        ),
        tests=_FILES,
    ),
    *rows(
        "liftpy/backup/planning.py",
        (
            "the tail is kept",
            "if piece.file.size_bytes < piece_bytes or piece.end",
            "if piece.end",
            "every backup adds a small piece",
        ),
        (
            "pieces past HW are kept",
            "or piece.end > high_watermark + 1:",
            "or piece.end > high_watermark + 2:",
            "records of a log that was cut are restored",
        ),
        ("dropped pieces are kept", "if piece.end <= start:", "if piece.end < start:", "what retention took is kept for ever"),
        (
            "the chain begins anew",
            "            chain = piece.chain\n",
            "            pass\n",
            "a backup contradicts itself after retention",
        ),
        ("the newest go", "ordered[: max(0, len(ordered) - keep)]", "ordered[keep:]", "prune removes the newest backups"),
        (
            "what an unfinished one writes is pruned",
            "and writer not in spared))",
            "and writer))",
            "a backup that runs beside a prune is not whole",
        ),
        (
            "what is no piece is pruned",
            "if path not in named and (writer := writer_of(path)) and writer not in spared",
            "if path not in named and writer_of(path) not in spared",
            "a prune removes files that are not ours",
        ),
        tests=_FILES,
    ),
    *rows(
        "liftpy/backup/checking.py",
        (
            "sizes are not looked at",
            "        if sizes.get(path) != file.size_bytes\n",
            "        if path not in sizes\n",
            "a cut piece is listed as whole",
        ),
        (
            "digests are not looked at",
            "if hashlib.sha256(data).hexdigest() != file.sha256:",
            "if not data:",
            "a flipped bit of the image is not found",
        ),
        (
            "any chain will do",
            "if (position, epoch, chain.hex()) != (piece.end, piece.last_epoch, piece.chain):",
            "if (position, epoch) != (piece.end, piece.last_epoch):",
            "a piece of another log is restored",
        ),
        tests=(*_FILES, *_STAGING),
    ),
    *rows(
        "liftpy/backup/cutting.py",
        (
            "until is exclusive",
            "end = max(until_offset + 1, batch.base_offset)",
            "end = max(until_offset, batch.base_offset)",
            "the last record that was wanted is missing",
        ),
        (
            "one batch too many",
            "until_offset < batch.last_offset:",
            "until_offset + 1 < batch.last_offset:",
            "a record past the wanted end is restored",
        ),
        (
            "later times are taken",
            "batch.timestamps_ns() >= until_ns)",
            "batch.timestamps_ns() > until_ns)",
            "a record of the very time is restored",
        ),
        (
            "a cut batch reaches as far as before",
            "parse_batch(reach(kept(batch, mask), end))",
            "parse_batch(kept(batch, mask))",
            "offsets without records stand at the end",
        ),
        (
            "epochs are not passed",
            "return max(0, most + 1 - next_leader_epoch)",
            "return max(0, most - next_leader_epoch)",
            "a LeaderEpoch of the backup is used again",
        ),
        (
            "the barrier's epoch counts alone",
            "most = max([manifest.leader_epoch, *(p.epoch for stream in manifest.streams for p in stream.partitions)])",
            "most = manifest.leader_epoch",
            "LeaderEpochs fall along a restored log",
        ),
        tests=_STAGING,
    ),
    *rows(
        "sidecar/backup/staging.py",
        (
            "what lies below the log start is restored",
            "if ended or batch.next_offset <= copy.start:",
            "if ended:",
            "records that retention took are back",
        ),
        ("it goes on behind the end", "            ended = True\n", "            pass\n", "records past --until are restored"),
        (
            "an empty log begins at 0",
            "    if not begun and copy.start:\n",
            "    if begun and copy.start:\n",
            "offsets of an emptied stream are given twice",
        ),
        ("HW is not kept", "    log.raise_high_watermark(log.newest_offset)\n", "", "a restored log is taken for uncommitted"),
        tests=_STAGING,
    ),
    *rows(
        "sidecar/backup/taking.py",
        (
            "ids of one second are in any order",
            "        second = max(second, backup_moment(newest) + timedelta(seconds=1))\n",
            "        pass\n",
            "the newest backup is not the one that is restored",
        ),
        (
            "a backup does not look at what is there",
            'earlier[-1] if earlier else ""',
            '""',
            "the newest backup is not the one that is restored",
        ),
        tests=_FILES,
    ),
    *rows(
        "sidecar/backup/looking.py",
        (
            "prune looks at no running backup",
            "    doomed -= set(used.values())\n",
            "",
            "the pieces that a running backup uses go",
        ),
        (
            "prune goes on beside one that says nothing yet",
            '    if "?" in used.values():\n        doomed = set()\n',
            "",
            "the backup that a new one is about to use goes",
        ),
        (
            "backups that died stay for ever",
            "return is_backup_id(backup) and now - backup_moment(backup) < RUNNING_AGE",
            "return is_backup_id(backup)",
            "files of dead backups are never removed",
        ),
        (
            "what is not whole counts",
            "(one.backup for one in listed if not one.faults), keep",
            "(one.backup for one in listed), keep",
            "the last whole backup is pruned for one that is not",
        ),
        ("another stream's image", "known.uid != stream.uid or ", "", "a stream is restored with settings of another"),
        tests=_FILES,
    ),
    *rows(
        "liftpy/cluster/rescued.py",
        (
            "LeaderEpochs don't leap",
            "was.next_leader_epoch + LEAP\n",
            "was.next_leader_epoch\n",
            "a LeaderEpoch of a lost entry is used again",
        ),
        (
            "incarnations don't leap",
            "Counters(was.next_incarnation + LEAP,",
            "Counters(was.next_incarnation,",
            "an incarnation of a lost entry is given again",
        ),
        ("uids don't leap", "was.next_stream_uid + LEAP,", "was.next_stream_uid,", "a stream is taken for one that was lost"),
        ("leaders stay", '        leader="",\n', "", "an old leader goes on in an epoch that others may have used"),
        ("nobody is fenced", "replace(node, fenced=True)", "replace(node)", "partitions wait for nodes that are gone"),
        (
            "the index stays",
            "index = image.index + LEAP",
            "index = image.index + 2",
            "followers of the feed take old entries for new ones",
        ),
        tests=_RESCUE,
    ),
    *rows(
        "sidecar/raft/rescue.py",
        (
            "the longest log is taken whatever its term",
            "key=lambda one: (one.term, one.index))",
            "key=lambda one: (one.index, one.term))",
            "what was committed is lost for what never was",
        ),
        (
            "a gap is passed over",
            "        if at != index + 1:\n",
            "        if at < index:\n",
            "the image lacks what a lost snapshot held",
        ),
        (
            "entries that a snapshot holds are applied again",
            "        if at <= index:\n            continue\n",
            "",
            "a folder with a snapshot can't be rescued from",
        ),
        (
            "two images of one log",
            "and one.digest != best.digest:",
            "and one.image is best:",
            "a diverged controller is believed",
        ),
        (
            "the old term goes on",
            "term = chosen.term + LEAP",
            "term = chosen.term",
            "members of the old group outvote the new one",
        ),
        (
            "the old log is thrown away",
            "        raft.rename(raft.with_name(BEFORE))\n",
            "        shutil.rmtree(raft)\n",
            "a rescue from the wrong log can't be taken back",
        ),
        (
            "who is none any more keeps its log",
            "        if node_id not in voters:\n",
            "        if node_id in voters:\n",
            "an old controller goes on with the old group",
        ),
        (
            "the loss is told for ever",
            "!= index:\n            return None",
            "< 0:\n            return None",
            "every start tells of a loss that is long over",
        ),
        tests=_RESCUE,
    ),
    *rows(
        "sidecar/backup/store.py",
        (
            "a file is written under its name",
            "part = path if self._fs.type_name in _ATOMIC else path + _PART",
            "part = path",
            "a backup that is cut off leaves half a manifest",
        ),
        (
            "a name is not flushed",
            "                if self._is_local:\n                    sync_folder(Path(self._whole(path)).parent)",
            "                pass",
            "a backup that was said to be there is gone after a power cut",
        ),
        (
            "a file is not flushed",
            "            os.fsync(descriptor)\n",
            "            pass\n",
            "a whole backup is empty after a power cut",
        ),
        (
            "folders above a new file are not flushed",
            "            sync_folder(folder)\n            folder = folder.parent",
            "            folder = folder.parent",
            "a whole backup is gone after a power cut",
        ),
        (
            "an error of a writer is swallowed",
            "            with self._fs.open_output_stream(whole, compression=None) as stream:\n                yield stream",
            "            stream = self._fs.open_output_stream(whole, compression=None)\n            try:\n                yield stream\n            except BaseException:\n                pass\n            stream.close()",
            "a piece that was cut off is named by a manifest",
        ),
        (
            "a manifest of another backup is taken",
            "if found.backup != backup:",
            "if False:",
            "a restore brings another day back",
        ),
        (
            "half a manifest counts",
            "and path == manifest_path(name))",
            "and path.startswith(manifest_path(name)))",
            "a backup that died is listed",
        ),
        tests=("tests/unit/backup/test_durable_store.py",),
    ),
    *rows(
        "sidecar/backup/taking.py",
        (
            "cursors are read behind the ends",
            "        cursors = await self._cursors({stream.name for stream in streams})\n        bounds = await self._bounds(streams)",
            "        bounds = await self._bounds(streams)\n        cursors = await self._cursors({stream.name for stream in streams})",
            "a cursor of a backup points past what it holds",
        ),
        (
            "the metadata is anybody's",
            "describe_cluster(linearizable=True)",
            "describe_cluster()",
            "a stream that was acknowledged is not in a backup that began later",
        ),
        (
            "ends of another stream are taken",
            "            if said.uid != stream.uid:\n",
            "            if False:\n",
            "a stream that is made again while a backup begins is kept as the old one",
        ),
        (
            "work queues are not kept",
            " | {queue.key: queue.acknowledged_below for queue in described.queues}",
            "",
            "after a restore all messages of a queue come once more",
        ),
        tests=("tests/unit/backup/test_durable_store.py",),
    ),
    *rows(
        "sidecar/backup/looking.py",
        (
            "who ended while a prune ran is unknown",
            "    meanwhile = ended | ",
            "    meanwhile = ",
            "a prune takes the pieces of a backup that has just ended",
        ),
        (
            "who began while a prune ran is unknown",
            "ended | (set(running) - set(used))",
            "ended",
            "a prune takes pieces that a backup is about to name",
        ),
        (
            "marks of who begins go",
            'if not _may_run(path.split("/")[1], now):',
            'if path.split("/")[1] not in running:',
            "the next prune does not know of a backup that runs",
        ),
        tests=("tests/unit/backup/test_backup_files.py",),
    ),
]
