"""Every frame of a recording against the vendor's own types, which forbid extra fields."""

import base64
import json

import pydantic
from google.genai import types


class Frames:
    """Judges recordings: JSONL of {"dir": "client" | "server", "frame": {...}}."""

    def __init__(self):
        self.frames = 0
        self.kinds = set()
        self.invalid = []
        assert types.LiveServerMessage.model_config["extra"] == "forbid"

    def judge(self, recording, told_wrong=(), deviations=()):
        """Counts the frames of a file. `told_wrong`: frames that the scenario sends wrong on purpose.
        `deviations`: (kind, field) in which a server that is not ours differs from the types; only its
        frames are excused, and only where nothing else is wrong with them. Gives the frames of each side."""
        counts = {"client": 0, "server": 0}
        with open(recording, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                entry = json.loads(line)
                self.frames += 1
                counts[entry["dir"]] += 1
                side, frame = entry["dir"], entry.get("frame")
                trouble = self.trouble(side, frame, deviations if side == "server" else ())
                kind = next(iter(frame), None) if isinstance(frame, dict) else None
                self.kinds.add((side, kind))
                if trouble and frame not in told_wrong:
                    self.invalid.append(f"{recording.name}:{number}: {side} {kind}: {trouble}")
        return counts

    def trouble(self, side, frame, deviations=()):
        """What is wrong with a frame, or None."""
        if not isinstance(frame, dict) or not frame:
            return "not an object with a message"
        model = types.LiveClientMessage if side == "client" else types.LiveServerMessage
        try:
            model.model_validate(_without_input_config(frame))
            _judge_bytes(frame)
        except pydantic.ValidationError as error:
            kind = next(iter(frame))
            wrong = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
            wrong = [(field, what) for field, what in wrong if (kind, field) not in deviations]
            if wrong:
                return "; ".join(f"{field}: {what}" for field, what in wrong[:6])
        except ValueError as error:
            return str(error)
        if side == "client" and len(frame) != 1:
            return f"{len(frame)} messages in one frame"
        return None

    def summary(self):
        return f"gemini frames {self.frames}, kinds {len(self.kinds)}, invalid {len(self.invalid)}"


def _without_input_config(frame):
    """The SDK sends `realtimeInputConfig` within the set-up, and has its type beside it."""
    setup = frame.get("setup")
    if not isinstance(setup, dict):
        return frame
    names = ("realtimeInputConfig", "realtime_input_config")
    for name in names:
        if name in setup:
            types.RealtimeInputConfig.model_validate(setup[name])
    return {"setup": {k: v for k, v in setup.items() if k not in names}}


def _judge_bytes(part):
    """Bytes are base64 in one of the two alphabets."""
    if isinstance(part, list):
        for inner in part:
            _judge_bytes(inner)
    elif isinstance(part, dict):
        if "data" in part and ("mimeType" in part or "mime_type" in part):
            data = part["data"].translate(str.maketrans("-_", "+/"))
            base64.b64decode(data, validate=True)
        for inner in part.values():
            _judge_bytes(inner)
