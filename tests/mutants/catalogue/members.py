"""Bugs in what stands before a group's member: ``liftpy consume --group``, and groups and cursors without asyncio."""

from __future__ import annotations

from tests.mutants.mutant import rows

_CLI = ("tests/unit/cli/test_cli_consumes_in_a_group.py",)
_SYNC = ("tests/unit/client/test_sync_group.py",)

MUTANTS = [
    *rows(
        "sidecar/cli/consume_group.py",
        ("a group takes options that it can't keep", "        if given:\n            raise click.UsageError(f\"{option}", "        if not given:\n            raise click.UsageError(f\"{option}", "--until is ignored, or every call refused"),
        ("a group begins anywhere", "if start not in (None, \"earliest\", \"new\"):", "if start is None and False:", "--from 100 reads from the beginning without a word"),
        ("a file of a group is of any kind", "if output is not None and output.suffix != \".jsonl\":", "if output is None:", "what is committed is in no file that can be read"),
        ("a group begins at the end", "start or \"earliest\"", "start or \"new\"", "what was there is never printed"),
        ("keys are left out", "keys=self.keys)", "keys=())", "--key prints records of all keys"),
        ("subjects are left out", "subjects=self.subjects, ", "subjects=(), ", "--filter prints records of all subjects"),
        ("a file gets what the terminal gets", "lines = json_lines if member.output is not None else LINES[member.form]", "lines = LINES[member.form]", "a file of JSON lines holds tabs"),
        ("what could not be printed is committed", "    write(lines)\n    written.set()\n", "    written.set()\n    write(lines)\n", "what a full disk did not take is lost"),
        ("what was printed last is not committed", "                        group.finished(part)\n", "                        pass\n", "everything comes again at each start"),
        ("what is being printed is committed", "if written.is_set():", "if written.is_set() or not writing.done():", "what nobody has read is lost at Ctrl-C"),
        ("printing holds heartbeats up", "asyncio.to_thread(_write, write, lines(part), written)", "asyncio.sleep(0, _write(write, lines(part), written))", "who reads slowly loses his partitions"),
        ("Ctrl-C comes between what is printed and its commit", "await asyncio.shield(writing)\n", "await asyncio.shield(writing)\n                    await asyncio.wait([writing], timeout=1)\n", "what was printed last comes again, now and then"),
        ("Ctrl-C does not wait", "await asyncio.wait([writing], timeout=_LAST_S)", "pass", "what was printed last comes again"),
        ("lines stay in memory", "    sys.stdout.buffer.flush()\n", "", "what was committed was printed nowhere"),
        ("a record says no partition", "{\"partition\": part.key.partition, **record_json(record)}", "{**record_json(record)}", "offsets of all partitions are mixed"),
        tests=_CLI,
    ),
    *rows(
        "liftpy/client/sync_group.py",
        ("a part is left out when the next is asked for", "        while (part := self._loop.run(following())) is not None:\n            yield part", "        while (part := self._loop.run(following())) is not None and self._loop.run(following()) is not None:\n            yield part", "every second part is never seen"),
        ("a closed group raises", "            except StopAsyncIteration:\n                return None\n", "            except StopAsyncIteration:\n                raise RuntimeError from None\n", "a loop over a group that is closed ends with an error"),
        ("what is finished is not told", "            self._group.finished(part)\n", "            pass\n", "what was finished comes again"),
        ("a commit waits for the next", "        self._loop.run(self._group.commit())\n", "        pass\n", "what commit() returned for comes again after a crash"),
        ("leaving leaves the member there", "        self.close()\n", "        pass\n", "its partitions wait for the end of its session"),
        ("what is copied is numbered by nobody", "partition_for=partition_for, options=options))", "partition_for=None, options=options))", "records go into other partitions than the caller says"),
        ("copying ignores its options", "partition_for=partition_for, options=options))", "partition_for=partition_for, options=None))", "the bounds that the caller gave do not hold"),
        ("a cursor reads its first partition", "self._cursor.consume(partition, start=start, **how)", "self._cursor.consume(0, start=start, **how)", "a partition is read twice, another never"),
        ("a cursor begins where nobody said", "self._cursor.consume(partition, start=start, **how)", "self._cursor.consume(partition, **how)", "start=\"new\" reads everything that is there"),
        ("a cursor commits its first partition", "self._cursor.commit(position, partition)", "self._cursor.commit(position)", "a partition begins anew, another skips records"),
        ("a cursor knows its first partition", "self._cursor.fetch(partition)", "self._cursor.fetch()", "a partition seems never to have been read"),
        tests=_SYNC,
    ),
]  # fmt: skip
