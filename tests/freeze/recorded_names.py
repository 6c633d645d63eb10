"""Names of classes when the digests were recorded. A class that is only renamed keeps its digests."""

from __future__ import annotations

import re

_RECORDED_NAMES = {
    "AnswerParkedFetch": "AnswerWaiter",
    "CombineFetch": "WaitQuietly",
    "CombinedFetchEnded": "QuietEnded",
    "CombinedFetchReceived": "QuietFetchReceived",
    "ConfirmCombinedFetch": "ConfirmQuiet",
    "EndCombinedFetch": "StopWaiting",
    "LogTruncated": "LogCut",
    "NotificationReceived": "WokenUp",
    "ParkFetch": "KeepFetch",
    "ResetLog": "StartLogAfresh",
    "SendHighWatermark": "TellWaiter",
    "SendToService": "Tell",
    "ServiceEnded": "Ended",
    "ServiceHealth": "Wellbeing",
    "ServicesReplayed": "Replayed",
    "TransferLeadership": "StepAside",
    "TruncateLog": "CutLog",
}
"""Class -> its name when the digests were recorded."""
_CAUSE = re.compile(r", cause=<TransferCause\.\w+: '\w+'>")
"""A field that the recorded classes did not have."""
_CALL = re.compile(rf"\b({'|'.join(_RECORDED_NAMES)})\(")


def with_recorded_names(text: str) -> str:
    """Return ``text``, which contains representations of objects, with the recorded names of their classes and fields."""
    text = _CAUSE.sub("", text.replace("CombinedFetchEnded(last_answer_ns=", "CombinedFetchEnded(heard_ns="))
    return _CALL.sub(lambda found: f"{_RECORDED_NAMES[found[1]]}(", text)
