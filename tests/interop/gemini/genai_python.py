"""The Python package `google-genai` against a server with TLS: one turn of a kind.

    genai_python.py URL TURN        the name of a function below

Exits 0 when the turn went as its user expects; says on standard error what did not.
"""

import asyncio
import json
import math
import struct
import sys

from google import genai
from google.genai import errors, live, types

RATE = 16_000
DEADLINE_S = 30
MODEL = "gemini-2.5-flash-native-audio-preview-12-2025"
NEWEST = "gemini-3.8-live"


def config(**more):
    return types.LiveConnectConfig(
        response_modalities=["AUDIO"],
        system_instruction="Be brief.",
        input_audio_transcription=types.AudioTranscriptionConfig(),
        output_audio_transcription=types.AudioTranscriptionConfig(),
        session_resumption=types.SessionResumptionConfig(handle=more.pop("handle", None)),
        speech_config=types.SpeechConfig(
            voice_config=types.VoiceConfig(
                prebuilt_voice_config=types.PrebuiltVoiceConfig(voice_name="Puck")
            )
        ),
        context_window_compression=types.ContextWindowCompressionConfig(
            trigger_tokens=25_600, sliding_window=types.SlidingWindow(target_tokens=12_800)
        ),
        **more,
    )


async def text(client):
    async with client.aio.live.connect(model=MODEL, config=config()) as session:
        await say(session, "hello")
        seen = await turn(session)
        assert seen.words == "You said: hello", seen.words
        assert len(seen.voice) > 2 * 24_000 // 10, f"{len(seen.voice)} bytes of voice"
        assert seen.usage.total_token_count > 0, seen.usage


async def audio(client):
    """The server hears a voice, answers, and transcribes it."""
    detection = types.AutomaticActivityDetection(disabled=False, silence_duration_ms=300)
    told = types.RealtimeInputConfig(automatic_activity_detection=detection)
    async with client.aio.live.connect(
        model=NEWEST, config=config(realtime_input_config=told)
    ) as session:
        await speak(session)
        await session.send_realtime_input(audio_stream_end=True)
        seen = await turn(session)
        assert seen.heard == "What time is it?", seen.heard
        assert seen.words == "Good day to you.", seen.words


async def manual(client):
    detection = types.AutomaticActivityDetection(disabled=True)
    told = types.RealtimeInputConfig(automatic_activity_detection=detection)
    async with client.aio.live.connect(
        model=MODEL, config=config(realtime_input_config=told)
    ) as session:
        await session.send_realtime_input(activity_start=types.ActivityStart())
        await speak(session, silence_s=0)
        await session.send_realtime_input(activity_end=types.ActivityEnd())
        seen = await turn(session)
        assert seen.words == "Good day to you.", seen.words
        await session.send_realtime_input(text="typed")
        assert (await turn(session)).words == "You said: typed"


async def tool(client):
    schema = types.Schema(type="OBJECT", properties={"city": types.Schema(type="STRING")})
    weather = types.FunctionDeclaration(
        name="get_weather", description="The weather.", parameters=schema, behavior="BLOCKING"
    )
    tools = [types.Tool(function_declarations=[weather])]
    async with client.aio.live.connect(model=NEWEST, config=config(tools=tools)) as session:
        await say(session, "What is the weather in Paris?")
        async for message in session.receive():
            if message.tool_call:
                (call,) = message.tool_call.function_calls
                break
        assert (call.name, call.args) == ("get_weather", {"city": "Paris"}), call
        response = types.FunctionResponse(id=call.id, name=call.name, response={"celsius": 18})
        await session.send_tool_response(function_responses=[response])
        seen = await turn(session)
        assert seen.words == "It is 18 degrees.", seen.words
        await session.send_context_update(system_instruction="Be long-winded.")


async def interrupt(client):
    """Speaking over an answer ends it."""
    async with client.aio.live.connect(model=NEWEST, config=config()) as session:
        await say(session, "Tell me a long story.")
        async for message in session.receive():
            if message.data:
                break
        await speak(session)
        seen = await turn(session)
        assert seen.interrupted, "it was not interrupted"
        assert not seen.generated, "an interrupted turn is not complete"
        seen = await turn(session)
        assert not seen.interrupted and seen.words == "Good day to you.", seen.words


async def resume(client):
    async with client.aio.live.connect(model=MODEL, config=config()) as session:
        await say(session, "remember me")
        handle = (await turn(session)).handle or (await next_handle(session))
    async with client.aio.live.connect(model=MODEL, config=config(handle=handle)) as session:
        await session.send_client_content(turn_complete=True)
        seen = await turn(session)
        assert seen.words == "You said: remember me", seen.words


async def handle_in_use(client):
    """The socket of the handle is open still; once it is closed, the handle is good."""
    async with client.aio.live.connect(model=MODEL, config=config()) as session:
        await say(session, "remember me")
        handle = (await turn(session)).handle or (await next_handle(session))
        await refused(client, handle, 1011)
    async with client.aio.live.connect(model=MODEL, config=config(handle=handle)) as session:
        await session.send_client_content(turn_complete=True)
        seen = await turn(session)
        assert seen.words == "You said: remember me", seen.words


async def stale_handle(client):
    """There is a newer one; and one that nobody gave."""
    async with client.aio.live.connect(model=MODEL, config=config()) as session:
        await say(session, "hello")
        handle = (await turn(session)).handle or (await next_handle(session))
        await say(session, "again")
        newer = (await turn(session)).handle or (await next_handle(session))
        assert newer != handle, newer
    await refused(client, handle, 1008)
    await refused(client, "of nobody", 1008)


async def tool_text(client):
    """A tool's answer that is a text, and no object."""
    wrong = {"toolResponse": {"functionResponses": [{"id": "x", "response": "sunny"}]}}
    await hung_up_on(client, wrong)


async def too_early(client):
    """Media right after the set-up, before the server has taken that."""
    blob = {"data": "AAAA", "mimeType": f"audio/pcm;rate={RATE}"}

    class Early(live.ws_connect):
        async def __aenter__(self):
            socket = await super().__aenter__()
            send = socket.send

            async def and_media(message, *arguments, **named):
                await send(message, *arguments, **named)
                await send(json.dumps({"realtimeInput": {"audio": blob}}))

            socket.send = and_media
            return socket

    live.ws_connect = Early
    try:
        async with client.aio.live.connect(model=MODEL, config=config()):
            raise AssertionError("it was taken")
    except errors.APIError as error:
        assert error.code == 1007, error


async def refusals(client):
    """What else the vendor hangs up on."""
    for wrong in (
        {"setup": {"model": "models/" + MODEL}},
        {"realtimeInput": {"activityStart": {}}},
        {"clientContent": {"turnComplete": True, "voice": "loud"}},
    ):
        await hung_up_on(client, wrong)


async def hung_up_on(client, wrong):
    async with client.aio.live.connect(model=MODEL, config=config()) as session:
        await session._ws.send(json.dumps(wrong))
        try:
            async for _ in session.receive():
                pass
        except errors.APIError as error:
            assert error.code == 1007, error
        else:
            raise AssertionError(f"{wrong} was taken")


async def refused(client, handle, code):
    try:
        async with client.aio.live.connect(model=MODEL, config=config(handle=handle)):
            raise AssertionError(f"{handle} was taken")
    except errors.APIError as error:
        assert error.code == code, error


class Turn:
    def __init__(self):
        self.words, self.heard, self.voice = "", "", b""
        self.interrupted = self.generated = False
        self.usage = self.handle = None


async def turn(session):
    """The next turn of the model."""
    seen = Turn()
    async for message in session.receive():
        seen.voice += message.data or b""
        seen.usage = message.usage_metadata or seen.usage
        update = message.session_resumption_update
        if update:
            seen.handle = update.new_handle if update.resumable else None
        content = message.server_content
        if not content:
            continue
        if content.output_transcription:
            seen.words += content.output_transcription.text or ""
        if content.input_transcription:
            seen.heard += content.input_transcription.text or ""
        seen.interrupted |= bool(content.interrupted)
        seen.generated |= bool(content.generation_complete)
    return seen


async def next_handle(session):
    """A handle comes with the end of a turn, after it."""
    while True:
        message = await session._receive()
        update = message.session_resumption_update
        if update and update.resumable:
            return update.new_handle


async def say(session, words):
    await session.send_client_content(
        turns=types.Content(role="user", parts=[types.Part(text=words)]), turn_complete=True
    )


async def speak(session, silence_s=1):
    """Something like a voice, and the silence after it."""
    samples = range(RATE * 8 // 10)
    voice = b"".join(
        struct.pack("<h", int(9_000 * math.sin(2 * math.pi * 220 * n / RATE))) for n in samples
    )
    sound = voice + bytes(2 * RATE * silence_s)
    for at in range(0, len(sound), 3_200):
        blob = types.Blob(data=sound[at : at + 3_200], mime_type=f"audio/pcm;rate={RATE}")
        await session.send_realtime_input(audio=blob)


async def main(url, kind):
    client = genai.Client(api_key="test-key", http_options=types.HttpOptions(base_url=url))
    await globals()[kind](client)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), DEADLINE_S))
