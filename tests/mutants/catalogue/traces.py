"""Bugs in traces: what is traced and when (``liftpy/trace``), the node's part (``sidecar/tracing``) and the client's."""

from __future__ import annotations

from tests.mutants.mutant import rows

CLIENT = ("tests/unit/client/test_client_traces.py",)
MESSAGES = ("tests/unit/trace/test_message_contexts.py",)
BATCHES = ("tests/unit/trace/test_batch_traces.py",)
NODE = ("tests/unit/node/test_tracing.py",)
PARTITION = ("tests/unit/partition/test_traced.py",)
MUTANTS = [
    *rows(
        "liftpy/trace/context.py",
        (
            "any version is one",
            "if version == 0xFF or not trace_id or not span_id:",
            "if not trace_id or not span_id:",
            "a malformed header makes a span",
        ),
        (
            "a trace of zeros is one",
            "if version == 0xFF or not trace_id or not span_id:",
            "if version == 0xFF or not span_id:",
            "spans of everybody without a trace are one trace",
        ),
        (
            "digits in any case",
            "([0-9a-f]{32})",
            "([0-9a-fA-F]{32})",
            "a header that other tools refuse makes a span",
        ),
        (
            "version 0 may say more",
            "(version == 0 or value[TRACEPARENT_BYTES] != 0x2D)",
            "value[TRACEPARENT_BYTES] != 0x2D",
            "a malformed header makes a span",
        ),
        (
            "the other flags count as recorded",
            "return bool(self.flags & SAMPLED)",
            "return bool(self.flags)",
            "messages that nobody records fill the collector",
        ),
        tests=("tests/unit/trace/test_traceparent.py",),
    ),
    *rows(
        "liftpy/trace/search.py",
        (
            "any name that ends so",
            "(name_sizes[begin:end] == len(_NAME)) & ",
            "(name_sizes[begin:end] >= len(_NAME)) & ",
            "a header of another name makes a span",
        ),
        (
            "a letter's flag is taken for a digit's",
            "bit = (digit ^ (digit > _NINE)) & SAMPLED",
            "bit = digit & SAMPLED",
            "messages that are recorded with flags a to f have no span",
        ),
        (
            "of a slice the whole batch is linked",
            "pairs = np.flatnonzero(fits) + begin",
            "pairs = np.flatnonzero(fits)",
            "a reader's span links to messages that it never got",
        ),
        (
            "the records before a slice count",
            "begin = int(headers.ends[first - 1]) if first else 0",
            "begin = 0",
            "a reader's span links to messages that it never got",
        ),
        (
            "the records behind a slice count",
            "behind = int(headers.ends[-1 if end is None else end - 1])",
            "behind = int(headers.ends[-1])",
            "a reader's span links to messages that it never got",
        ),
        (
            "links without end",
            "            if len(found) == most:\n                break\n",
            "",
            "a span of a large batch has more links than a collector takes",
        ),
        (
            "a batch that can't be had ends the leader",
            "except CorruptionError:  # of what its publisher has compressed; readers are told\n        return ()",
            "except ZeroDivisionError:\n        return ()",
            "one publisher's bad batch stops a partition where traces are on",
        ),
        tests=("tests/unit/trace/test_traceparent.py",),
    ),
    *rows(
        "liftpy/trace/messages.py",
        (
            "a context is put in twice",
            "    if bears_one(pairs):\n        return pairs\n    marked",
            "    marked",
            "the application's own trace is cut off",
        ),
        (
            "only small letters name one",
            "return any(name.lower() == TRACEPARENT for name, _ in pairs)",
            "return any(name == TRACEPARENT for name, _ in pairs)",
            "a message has two contexts, in two cases",
        ),
        (
            "what nobody records is linked",
            "is not None and context.sampled:",
            "is not None:",
            "spans lead to traces that are nowhere",
        ),
        (
            "a state of any size",
            "if state and len(state) <= MAX_STATE_BYTES and not",
            "if state and not",
            "a batch outgrows what NATS takes",
        ),
        (
            "the own state is written over",
            " and not any(name.lower() == TRACESTATE for name, _ in pairs)",
            "",
            "a message has two tracestates",
        ),
        (
            "a first record with a context gets another",
            "in bytes(had.names.data[: int(had.names.ends[own - 1])]).lower():\n        return columns",
            'in b"":\n        return columns',
            "the application's own trace is cut off",
        ),
        (
            "headers move by one record",
            "HeadersColumn(had.ends + added, ",
            "HeadersColumn(had.ends, ",
            "a batch is damaged by being traced",
        ),
        tests=MESSAGES,
    ),
    *rows(
        "liftpy/trace/budget.py",
        (
            "the bucket never fills",
            "max(0, now_ns - self._at_ns) * self._per_s / NS_PER_S",
            "0",
            "traces end after the first second",
        ),
        (
            "the bucket has no bottom",
            "return self._tokens >= spans",
            "return True",
            "a flood of traced messages is a flood of spans",
        ),
        (
            "a quiet hour saves up",
            "self._tokens = min(self._per_s, self._tokens",
            "self._tokens = max(self._per_s, self._tokens",
            "after a quiet hour spans come by the hundred thousand",
        ),
        (
            "what was dropped is not counted",
            "            self.dropped += spans\n            return False",
            "            return False",
            "nobody knows that spans are missing",
        ),
        (
            "nothing is given back",
            "self._tokens += spans",
            "pass",
            "where a sampler takes one of a hundred, nearly none is left",
        ),
        tests=(*BATCHES, *MESSAGES),
    ),
    *rows(
        "liftpy/trace/batches.py",
        (
            "followers of another epoch count",
            "if replica in one.missing and one.leader_epoch == leader_epoch:",
            "if replica in one.missing:",
            "a follower's old flush stands for the new leader's batch",
        ),
        (
            "a lagging follower holds the span",
            "(not one.missing or now_ns - since >= LINGER_NS)",
            "not one.missing",
            "while a follower is down no batch is told of",
        ),
        (
            "batches are followed without end",
            "        if full:\n            node.budget.dropped += spans\n            return\n",
            "",
            "a partition without its majority fills the memory with spans",
        ),
        (
            "what ended uncommitted is well",
            'node.put(self._tree(one, "" if one.committed_ns else error))',
            'node.put(self._tree(one, ""))',
            "a batch that was lost looks stored in its trace",
        ),
        (
            "the count of open ones stays",
            "node.open_count -= len(going)",
            "pass",
            "after 64 batches nothing is traced any more",
        ),
        (
            "an election that fails is well",
            'error = "" if is_ready else f"it became {role} instead"',
            'error = ""',
            "a lost election looks won",
        ),
        tests=BATCHES,
    ),
    *rows(
        "sidecar/tracing/exporting.py",
        (
            "a queue without a bound",
            "if self._queued + tree.size <= MOST_QUEUED_SPANS:",
            "if True:",
            "a collector that hangs fills the node's memory",
        ),
        (
            "what finds no room is not counted",
            "        self._budget.dropped += tree.size\n\n    def settle",
            "\n    def settle",
            "nobody knows that spans are missing",
        ),
        (
            "what the collector refuses is not counted",
            "            self._failed += size",
            "            pass",
            "nobody knows that spans are missing",
        ),
        (
            "a failed export ends the thread",
            "        except Exception:  # requests' and urllib3's own errors, of several kinds\n            failed = True",
            "        except ZeroDivisionError:\n            failed = True",
            "after one refusal the spans of that second are not counted",
        ),
        (
            "the room of what is exported is kept",
            "self._queued -= size",
            "pass",
            "after 2,048 spans nothing is traced any more",
        ),
        (
            "children have no parent",
            "made = self._tracer.start_span(child.name, below, attributes",
            "made = self._tracer.start_span(child.name, None, attributes",
            "flush and commit are traces of their own",
        ),
        (
            "spans have no sender",
            "if tree.parent is not None else None",
            "if False else None",
            "the append is not in its sender's trace",
        ),
        tests=NODE,
    ),
    *rows(
        "sidecar/tracing/node_tracing.py",
        (
            "every controller tells of a fail-over",
            "if self._thread is not None and self.leads_group:",
            "if self._thread is not None:",
            "a fail-over is told three times",
        ),
        (
            "dropped spans never reach the metric",
            "self._counters[DROPPED] = self.traces.budget.dropped",
            "pass",
            "the metric liftpy_trace_spans_dropped_total stands still",
        ),
        (
            "the missing package is a traceback",
            "            except ImportError as error:\n                raise ConfigError",
            "            except ZeroDivisionError as error:\n                raise ConfigError",
            "nobody says what to install",
        ),
        tests=NODE,
    ),
    *rows(
        "sidecar/tracing/traced.py",
        ("flushes are not noted", "traces.flushed(event.end_offset)", "pass", "traces have no flush, and wait 30 s"),
        (
            "fetches are not noted",
            "traces.fetched(event.replica, event.offset, event.leader_epoch)",
            "pass",
            "traces have no followers",
        ),
        (
            "an event is kept for the trace",
            "return self._replica.step(event, now_ns)",
            "return []",
            "a replica that is traced hears nothing",
        ),
        tests=PARTITION,
    ),
    *rows(
        "sidecar/tracing/node_tracing.py",
        (
            "switching waits for the collector",
            "            ending.end()",
            "            ending.close()",
            "a collector that hangs stalls the node that is to stop asking it",
        ),
        (
            "what was on its way is not told",
            "            partitions()  # they hand over what they follow\n",
            "",
            "batches of the moment of switching hang in memory",
        ),
        ("an old thread goes on", "            ending.end()\n", "", "each switch leaves a thread behind"),
        (
            "any setting begins traces anew",
            "        if (before.trace, before.trace_endpoint) == (settings.trace, settings.trace_endpoint):\n            return\n",
            "",
            "another log level cuts the traces of a moment",
        ),
        tests=NODE,
    ),
    *rows(
        "sidecar/tracing/traced.py",
        (
            "acks to nobody end the trace",
            "if self._traces.follows and self._one.acks.count < owed:",
            "if self._traces.follows:",
            "an ack is told that was never sent",
        ),
        (
            "off it stands between still",
            "driver.replica = one.replica if traces is None else Noted",
            "driver.replica = one.replica if False else Noted",
            "a node whose traces are switched off stops at its next event",
        ),
        (
            "a failed append is followed",
            "        if not batch:\n            return\n",
            "",
            "a log that fails ends the process by an error of traces",
        ),
        tests=PARTITION,
    ),
    *rows(
        "sidecar/partition/worker.py",
        (
            "what was followed hangs when traces end",
            "            before.ended(SWITCHED)\n",
            "            pass\n",
            "64 batches are never told, and no other is followed after that",
        ),
        tests=PARTITION,
    ),
    *rows(
        "sidecar/reloading.py",
        (
            "a missing package is noticed too late",
            "        self._parts().tracing.check(found)\n",
            "",
            "a file that can't be taken over is taken over by half",
        ),
        (
            "partitions go on as they were",
            "                worker.trace()\n",
            "                pass\n",
            "traces begin with the next start only",
        ),
        tests=("tests/unit/node/test_reloading.py",),
    ),
    *rows(
        "liftpy/client/spans.py",
        (
            "what nobody records is told",
            "or (around.is_valid and not around.trace_flags.sampled):",
            "or False:",
            "a sampler's no is not heard",
        ),
        (
            "a malformed context makes a span",
            "if (bears and own is None) or",
            "if False or",
            "a malformed header changes what is told",
        ),
        (
            "an unsampled span is put in",
            "if made.is_valid and made.trace_flags.sampled:",
            "if made.is_valid:",
            "every message bears a header that says nothing",
        ),
        (
            "what a sampler refuses costs the budget",
            "        budget.gives_back(1)\n",
            "",
            "where a sampler takes one of a hundred, nearly none is left",
        ),
        (
            "dropped spans are not counted",
            "            self._counters[DROPPED] += 1\n",
            "",
            "nobody knows that spans are missing",
        ),
        (
            "a failure looks well",
            "            self._span.set_status(trace.StatusCode.ERROR, str(error))\n",
            "",
            "a publish that was refused looks stored",
        ),
        (
            "the application's span is not the parent",
            "if not created or trace.get_current_span(now).get_span_context().is_valid:",
            "if not created:",
            "a request's trace is cut where it reads",
        ),
        (
            "beyond the bound the trace is cut",
            "before = contexts.attach(self._below(created))",
            "before = contexts.attach(contexts.get_current())",
            "under load what follows from a message is of no trace",
        ),
        (
            "the context stays behind",
            "            contexts.detach(before)",
            "            pass",
            "what is published later is of the wrong trace",
        ),
        (
            "a batch has come when it is handed on",
            'links: Sequence[TraceContext],\n        start_ns: int | None = None,\n    ) -> trace.Span | None:  # fmt: skip\n        """Begun; None: there is no budget, or nobody records it."""\n',
            "links: Sequence[TraceContext],\n        start_ns: int | None = None,\n    ) -> trace.Span | None:  # fmt: skip\n        start_ns = None\n",
            "how long a batch waited for its reader is not told",
        ),
        tests=CLIENT,
    ),
    *rows(
        "liftpy/client/traced.py",
        (
            "a failure counts as looked at",
            'error = getattr(coming, "_exception", None)  # to ask for it would count as having looked at it',
            "error = coming.exception()",
            "flush of a traced publisher hides that a message was refused",
        ),
        (
            "records that are compared bear a context",
            "self.name.startswith(ANONYMOUS)",
            "True",
            "a producer that repeats is told that its records are others'",
        ),
        (
            "a span per record that is handed on",
            "sampled_in(headers, what.first_index, what.end_index, MOST_READ_LINKS)",
            "sampled_in(headers)",
            "a reader's span links to messages that it never got",
        ),
        (
            "a plain publish is never over",
            "        if span is not None:\n            span.ended()\n",
            "",
            "spans of plain publishes are lost",
        ),
        (
            "one that is refused is never over",
            "        except BaseException as error:\n            span.ended(error)\n            raise\n        coming",
            "        except BaseException:\n            raise\n        coming",
            "spans of refused publishes are lost",
        ),
        (
            "batches do not know when they came",
            "            piece.batch.arrived_ns = now_ns\n",
            "            pass\n",
            "how long a batch waited for its reader is not told",
        ),
        tests=CLIENT,
    ),
    *rows(
        "liftpy/client/lane.py",
        (
            "every piece of a batch is marked",
            "if not first and self.begun is not None:",
            "if self.begun is not None:",
            "a batch has as many spans as calls",
        ),
        tests=CLIENT,
    ),
    *rows(
        "liftpy/client/tracing.py",
        (
            "the missing package is a traceback",
            "    except ImportError as error:\n",
            "    except ZeroDivisionError as error:\n",
            "nobody says what to install",
        ),
        tests=CLIENT,
    ),
]
