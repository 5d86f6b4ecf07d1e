"""The Python package `openai` against a server: one turn of a kind.

    openai_python.py URL TURN        the name of a function below

Exits 0 when the turn went as its user expects; says on standard error what did not.
"""

import asyncio
import base64
import json
import math
import struct
import sys

from openai import AsyncOpenAI

RATE = 24_000
DEADLINE_S = 20


async def text(connection):
    await connection.session.update(
        session={"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}
    )
    await expect(connection, "session.updated")
    await say(connection, "hello")
    await connection.response.create(response={"metadata": {"topic": "greeting"}})
    created = await expect(connection, "response.created")
    assert created.response.metadata == {"topic": "greeting"}, created
    words = ""
    async for event in connection:
        if event.type == "response.output_text.delta":
            words += event.delta
        if event.type == "response.output_text.done":
            assert event.text == words, (event.text, words)
        if event.type == "response.done":
            assert event.response.status == "completed", event
            assert event.response.usage.total_tokens > 0, event
            break
    assert words, "no words"


async def audio(connection):
    """Server VAD hears a voice, answers, and transcribes it."""
    await connection.session.update(
        session={
            "type": "realtime",
            "audio": {
                "input": {
                    "transcription": {"model": "gpt-4o-mini-transcribe"},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
                }
            },
        }
    )
    await expect(connection, "session.updated")
    await speak(connection)
    seen, samples = [], 0
    async for event in connection:
        seen.append(event.type)
        if event.type == "response.output_audio.delta":
            samples += len(base64.b64decode(event.delta, validate=True)) // 2
        if event.type == "response.done":
            assert event.response.status == "completed", event
            break
    for wanted in ("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
                   "input_audio_buffer.committed", "response.created"):
        assert wanted in seen, f"no {wanted} in {seen}"
    assert samples >= RATE // 10, f"{samples} samples of voice"
    if "conversation.item.input_audio_transcription.completed" not in seen:
        await expect(connection, "conversation.item.input_audio_transcription.completed")


async def tool(connection):
    await connection.session.update(
        session={
            "type": "realtime",
            "output_modalities": ["text"],
            "tools": [
                {
                    "type": "function",
                    "name": "get_weather",
                    "description": "The weather in a city.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                    },
                }
            ],
            "tool_choice": "auto",
        }
    )
    await expect(connection, "session.updated")
    await say(connection, "What is the weather in Paris?")
    await connection.response.create()
    call = await expect(connection, "response.function_call_arguments.done")
    assert json.loads(call.arguments) == {"city": "Paris"}, call
    assert call.name == "get_weather", call
    done = await expect(connection, "response.done")
    (item,) = [item for item in done.response.output if item.type == "function_call"]
    assert item.call_id == call.call_id, done
    await connection.conversation.item.create(
        item={"type": "function_call_output", "call_id": call.call_id, "output": '{"celsius": 18}'}
    )
    await connection.response.create()
    words = await expect(connection, "response.output_text.done")
    assert "18" in words.text, words
    await expect(connection, "response.done")


async def manual(connection):
    """No VAD: the client commits, asks, retrieves, truncates and deletes."""
    await connection.session.update(
        session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    )
    await expect(connection, "session.updated")
    await connection.input_audio_buffer.clear()
    await expect(connection, "input_audio_buffer.cleared")
    await connection.input_audio_buffer.append(audio=base64.b64encode(tone(500)).decode())
    await connection.input_audio_buffer.commit()
    await expect(connection, "input_audio_buffer.committed")
    await connection.response.create()
    done = await expect(connection, "response.done")
    (item,) = done.response.output
    await connection.conversation.item.retrieve(item_id=item.id)
    retrieved = await expect(connection, "conversation.item.retrieved")
    assert retrieved.item.content[0].audio, "a retrieved item has its audio"
    await connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=100)
    truncated = await expect(connection, "conversation.item.truncated")
    assert truncated.audio_end_ms == 100, truncated
    await connection.conversation.item.delete(item_id=item.id)
    await expect(connection, "conversation.item.deleted")


async def interrupt(connection):
    """Speaking over an answer ends it."""
    await say(connection, "Tell me a long story.")
    await connection.response.create()
    first = await expect(connection, "response.output_audio.delta")
    await speak(connection)
    done = await expect(connection, "response.done")
    assert done.response.status == "cancelled", done
    assert done.response.status_details.reason == "turn_detected", done
    await connection.conversation.item.truncate(
        item_id=first.item_id, content_index=0, audio_end_ms=20
    )
    await expect(connection, "conversation.item.truncated")
    done = await expect(connection, "response.done")
    assert done.response.status == "completed", done


async def unknown_key(connection):
    """One key that is not known, and the whole session is refused; the connection goes on."""
    await connection.session.update(
        session={"type": "realtime", "instructions": "x", "modalities": ["text"]}
    )
    await refused(connection, "unknown_parameter", param="session.modalities")
    await text(connection)


async def second_response(connection):
    """A reply is asked for while one is active: refused by name, and the active one goes on."""
    await say(connection, "Tell me a long story.")
    await connection.response.create()
    await expect(connection, "response.output_audio.delta")
    await connection.response.create(event_id="twice")
    error = await refused(connection, "conversation_already_has_active_response")
    assert error.event_id == "twice", error
    done = await expect(connection, "response.done")
    assert done.response.status == "completed", done


async def refusals(connection):
    """What else the vendor refuses, by its codes; nothing of it ends the connection."""
    await connection.input_audio_buffer.commit()
    await refused(connection, "input_audio_buffer_commit_empty")
    await connection.response.cancel()
    await refused(connection, "response_cancel_not_active")
    await connection.conversation.item.truncate(
        item_id="nothing", content_index=0, audio_end_ms=100
    )
    await refused(connection, "item_truncate_invalid_item_id")
    await connection.conversation.item.create(
        item={
            "id": "x" * 33,
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
        }
    )
    await refused(connection, "string_above_max_length", param="item.id")
    await say(connection, "Tell me a long story.")
    await connection.response.create()
    await expect(connection, "response.output_audio.delta")
    await connection.response.cancel()
    done = await expect(connection, "response.done")
    assert done.response.status_details.reason == "client_cancelled", done
    item = done.response.output[0].id
    await connection.conversation.item.truncate(
        item_id=item, content_index=0, audio_end_ms=3_600_000
    )
    error = await refused(connection, ...)
    assert "already shorter" in error.message, error


async def refused(connection, code, param=None):
    event = await expect(connection, "error", errors=True)
    assert code is ... or event.error.code == code, event
    assert param is None or event.error.param == param, event
    return event.error


async def expect(connection, kind, errors=False):
    """The next event of a kind."""
    async for event in connection:
        if event.type == "error" and not errors:
            raise AssertionError(f"{event.error.code}: {event.error.message}")
        if event.type == kind:
            return event
    raise AssertionError(f"the connection ended before {kind}")


async def say(connection, words):
    await connection.conversation.item.create(
        item={
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": words}],
        }
    )


async def speak(connection):
    """Something like a voice, and the silence after it."""
    sound = tone(800) + bytes(2 * RATE)
    for at in range(0, len(sound), 4_800):
        await connection.input_audio_buffer.append(
            audio=base64.b64encode(sound[at : at + 4_800]).decode()
        )


def tone(ms):
    samples = range(RATE * ms // 1_000)
    return b"".join(
        struct.pack("<h", int(9_000 * math.sin(2 * math.pi * 220 * n / RATE))) for n in samples
    )


async def main(url, turn):
    client = AsyncOpenAI(api_key="sk-test", base_url=url)
    async with client.realtime.connect(model="gpt-realtime") as connection:
        created = await connection.recv()
        assert created.type == "session.created", created
        await globals()[turn](connection)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), DEADLINE_S))
