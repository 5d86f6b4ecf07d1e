"""The Python package `openai-agents` against a server: one turn of a kind.

    agents_python.py URL text|audio|tool|interrupt
"""

import asyncio
import sys

from agents import function_tool, set_tracing_disabled
from agents.realtime import RealtimeAgent, RealtimeRunner

from openai_python import DEADLINE_S, RATE, tone

CITIES = []


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    CITIES.append(city)
    return "18 degrees"


async def text(session):
    await session.send_message("hello")
    said = await until_the_end(session)
    assert said["audio"] > RATE // 10, said


async def audio(session):
    await session.send_audio(tone(800) + bytes(2 * RATE))
    said = await until_the_end(session)
    assert said["audio"] > RATE // 10, said


async def tool(session):
    await session.send_message("What is the weather in Paris?")
    await until(session, "tool_end")
    assert CITIES == ["Paris"], CITIES
    said = await until_the_end(session)
    assert said["audio"] > 0, said


async def interrupt(session):
    """A voice over the answer; then the model says no more of it, and answers anew."""
    await session.send_message("Tell me a long story.")
    await until(session, "audio")
    await session.send_audio(tone(800) + bytes(2 * RATE))
    await until(session, "audio_interrupted")
    said = await until_the_end(session)
    assert said["audio"] > 0, said


async def until(session, kind):
    async for event in session:
        if event.type == "error":
            raise AssertionError(event.error)
        if event.type == kind:
            return event
    raise AssertionError(f"the session ended before {kind}")


async def until_the_end(session):
    said = {"audio": 0}
    async for event in session:
        if event.type == "error":
            raise AssertionError(event.error)
        if event.type == "audio":
            said["audio"] += len(event.audio.data) // 2
        if event.type == "agent_end" and said["audio"]:
            return said
    raise AssertionError("the session ended before the answer")


async def main(url, turn):
    set_tracing_disabled(True)
    agent = RealtimeAgent(name="Host", instructions="Be brief.", tools=[get_weather])
    settings = {
        "model_name": "gpt-realtime",
        "voice": "marin",
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
    }
    where = url.replace("http", "ws", 1) + "/realtime?model=gpt-realtime"
    config = {"api_key": "sk-test", "url": where, "initial_model_settings": settings}
    async with await RealtimeRunner(agent).run(model_config=config) as session:
        await globals()[turn](session)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), DEADLINE_S))
