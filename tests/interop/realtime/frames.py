"""Every frame of a recording against the vendor's own types, with extra fields forbidden."""

import inspect
import json
import typing

import pydantic
from openai import BaseModel
from openai.types import realtime

ROUNDS = 8
"""Models nest this deep at most; each round makes the strictness of one more level known."""


class Frames:
    """Judges recordings: JSONL of {"dir": "client" | "server", "frame": {...}}."""

    def __init__(self):
        _forbid_extra_fields()
        self._kinds = {
            "client": _by_type(realtime.RealtimeClientEvent),
            "server": _by_type(realtime.RealtimeServerEvent),
        }
        self.frames = 0
        self.kinds = set()
        self.invalid = []

    def judge(self, recording, told_wrong=(), deviations={}):
        """Counts the frames of a file. `told_wrong`: kinds that the scenario sends wrong on purpose.
        `deviations`: (kind, field) in which a server that is not ours differs from the types; only its
        frames are excused, and only where nothing else is wrong with them. Gives the frames of each side."""
        counts = {"client": 0, "server": 0}
        with open(recording, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                entry = json.loads(line)
                self.frames += 1
                counts[entry["dir"]] += 1
                side, frame = entry["dir"], entry.get("frame")
                trouble = self.trouble(side, frame, deviations if side == "server" else {})
                kind = frame.get("type") if isinstance(frame, dict) else None
                self.kinds.add((side, kind))
                if trouble and kind not in told_wrong:
                    self.invalid.append(f"{recording.name}:{number}: {side} {kind}: {trouble}")
        return counts

    def trouble(self, side, frame, deviations={}):
        """What is wrong with a frame, or None."""
        if not isinstance(frame, dict):
            return "not an object"
        frame = _without_what_only_servers_know(side, _mended(frame, deviations))
        model = self._kinds[side].get(frame.get("type"))
        if model is None:
            return "no such event"
        try:
            model.model_validate(frame)
        except pydantic.ValidationError as error:
            return "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:12]
            )
        if side == "server" and not frame.get("event_id"):
            return "no event_id"
        return None

    def summary(self):
        return f"frames {self.frames}, kinds {len(self.kinds)}, invalid {len(self.invalid)}"


def _without_what_only_servers_know(side, frame):
    """The vendor's sessions carry three fields that its types leave out."""
    session = frame.get("session")
    if side != "server" or not isinstance(session, dict):
        return frame
    kept = {k: v for k, v in session.items() if k not in ("id", "object", "expires_at")}
    return {**frame, "session": kept}


def _mended(frame, deviations):
    """A copy of a frame without the named deviations: of each (kind, field), the value that the types
    have instead of each wrong one, or none for a field that they do not have."""
    frame = json.loads(json.dumps(frame))
    for (kind, field), instead in deviations.items():
        if frame.get("type") == kind:
            *path, name = field.split(".")
            holders = [frame]
            for step in path:
                holders = [h for holder in holders if isinstance(holder, dict)
                           for h in _as_list(holder.get(step))]
            for holder in holders:
                if not isinstance(holder, dict):
                    continue
                if instead is None:
                    holder.pop(name, None)
                elif holder.get(name) in instead:
                    holder[name] = instead[holder.get(name)]
    return frame


def _as_list(value):
    return value if isinstance(value, list) else [value]


def _by_type(union):
    kinds = {}
    for model in _members(union):
        (kind,) = typing.get_args(model.model_fields["type"].annotation)
        kinds[kind] = model
    return kinds


def _members(union):
    if inspect.isclass(union):
        return [union]
    if typing.get_origin(union) is typing.Annotated:
        return _members(typing.get_args(union)[0])
    return [model for part in typing.get_args(union) for model in _members(part)]


def _forbid_extra_fields():
    models = {}
    for union in (realtime.RealtimeClientEvent, realtime.RealtimeServerEvent):
        for model in _members(union):
            _collect(model, models)
    for model in models:
        model.model_config = {**model.model_config, "extra": "forbid"}
    for _ in range(ROUNDS):
        for model in models:
            model.model_rebuild(force=True)


def _collect(part, models):
    """Every model that a type holds."""
    if inspect.isclass(part) and issubclass(part, BaseModel):
        if part not in models:
            models[part] = None
            for field in part.model_fields.values():
                _collect(field.annotation, models)
    else:
        for inner in typing.get_args(part):
            _collect(inner, models)
