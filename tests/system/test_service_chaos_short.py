"""The short form of ``python -m tests.system.service_chaos``: what operators meet, against a model; and that the model notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random

import pytest

from liftpy.core.wire.batch import Record
from tests.system.service_chaos.catalogue import FAULTS
from tests.system.service_chaos.ground import Ground
from tests.system.service_chaos.model import Model, ViolationError
from tests.system.service_chaos.rounds import drawn, one_round

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


async def test_service_states_and_outputs_equal_the_model_after_random_faults() -> None:
    ground = Ground(Random(5), lambda node, line: print(f"{node} | {line}"))
    try:
        await ground.open()
        print(await one_round(ground, 1, [FAULTS[name] for name in ("other-outputs", "poison")]))
        assert len(ground.model.poisons) > 0
        assert len(ground.written) > len(ground.acked) - len(ground.model.poisons) > 40
    finally:
        await ground.close()


def test_service_chaos_fault_choice_is_equal_for_the_same_seed_and_contains_every_fault() -> None:
    rounds = [[fault.name for fault in faults] for faults in drawn(Random(7), 30)]
    assert rounds == [[fault.name for fault in faults] for faults in drawn(Random(7), 30)]
    assert {name for names in rounds for name in names} == set(FAULTS)
    assert len(rounds) == 30


def _model() -> tuple[Model, dict[int, bytes]]:
    values = [b"plain 1", b"timed 2", b"poison 3", b"plain 4", b"plain 5"]
    skips = {offset: (("Lift-Service-Skip", b"ledger/%d/0/" % of),) for offset, of in ((5, 2), (6, 3))}
    model = Model("ledger", ordered={3})
    for offset in range(7):
        value = values[offset] if offset < len(values) else b""
        model.apply(Record(offset, offset * 10_000_000, b"k", value, skips.get(offset, ()), "", None, 1))
    return model, dict(enumerate(values))


def test_service_chaos_model_accepts_a_correct_log_with_its_outputs_and_states() -> None:
    model, acked = _model()
    model.check_log(acked)
    assert (model.count, len(model.outputs), model.decided) == (4, 4, {2, 3})  # three commands and a timer
    model.check_outputs(list(model.outputs))
    model.check_states(7, {"n1": model.state}, {"n1": 4})


@pytest.mark.parametrize(
    "broken",
    [
        lambda model, acked: model.check_log(acked | {7: b"lost"}),
        lambda model, acked: model.check_log(acked | {4: b"another"}),
        lambda model, acked: dataclasses.replace(model, ordered=set()).check_log(acked),
        lambda model, acked: model.check_outputs(model.outputs[:-1]),
        lambda model, acked: model.check_outputs([*model.outputs, model.outputs[-1]]),
        lambda model, acked: model.check_outputs([model.outputs[1], model.outputs[0], *model.outputs[2:]]),
        lambda model, acked: model.check_outputs([(b"other", b"k"), *model.outputs[1:]]),
        lambda model, acked: model.check_states(6, {"n1": model.state}, {"n1": 4}),
        lambda model, acked: model.check_states(7, {"n1": model.state, "n2": b"{}"}, {"n1": 4, "n2": 4}),
        lambda model, acked: model.check_states(7, {"n1": model.state}, {"n1": 5}),
        lambda model, acked: model.apply(Record(9, 0, None, b"", (), "", None, 1)),
    ],
)
def test_service_chaos_model_raises_for_each_kind_of_violation(broken: Callable[[Model, dict[int, bytes]], None]) -> None:
    model, acked = _model()
    with pytest.raises(ViolationError):
        broken(model, acked)
