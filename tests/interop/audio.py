"""WAV files for tests: reading, joining, and where in them somebody speaks."""

import subprocess
import wave

import numpy as np

BLOCK_S = 0.01
"""Loudness is looked at in blocks of 10 ms."""


def read(path):
    """Samples from -1 to 1 of a 16-bit WAV of one channel, and their rate."""
    with wave.open(str(path), "rb") as file:
        if file.getsampwidth() != 2 or file.getnchannels() != 1:
            raise ValueError(f"{path}: not 16 bit, one channel")
        data = file.readframes(file.getnframes())
        rate = file.getframerate()
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768, rate


def write(path, samples, rate):
    """Writes samples from -1 to 1 as a 16-bit WAV of one channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def loudness(samples, rate):
    """The level of each block of 10 ms."""
    block = int(rate * BLOCK_S)
    count = len(samples) // block
    blocks = samples[: count * block].reshape(count, block)
    return np.sqrt((blocks.astype(np.float64) ** 2).mean(axis=1)) if count else np.zeros(0)


def voiced(samples, rate, threshold=0.004, join_s=0.3):
    """Stretches of sound as (start, end) in seconds; pauses shorter than `join_s` belong to one."""
    stretches = []
    for index in np.flatnonzero(loudness(samples, rate) > threshold):
        start, end = index * BLOCK_S, (index + 1) * BLOCK_S
        if stretches and start - stretches[-1][1] < join_s:
            stretches[-1][1] = end
        else:
            stretches.append([start, end])
    return [tuple(stretch) for stretch in stretches]


def longest_hole(samples, rate):
    """The longest run of exact zeros between the first and the last sound, in seconds."""
    sounding = np.flatnonzero(samples)
    if len(sounding) < 2:
        return 0.0
    return float((np.diff(sounding) - 1).max()) / rate


def flite(text, path, voice="slt"):
    """`text` in a voice that is not ours, at 16 kHz."""
    subprocess.run(["flite", "-voice", voice, "-t", text, "-o", str(path)], check=True)
    return path


def join(path, *pieces):
    """Joins WAV files and pauses (a number: seconds) into one file."""
    rate = next(read(piece)[1] for piece in pieces if not isinstance(piece, (int, float)))
    samples = []
    for piece in pieces:
        if isinstance(piece, (int, float)):
            samples.append(np.zeros(int(rate * piece), np.float32))
            continue
        audio, audio_rate = read(piece)
        if audio_rate != rate:
            raise ValueError(f"{piece}: {audio_rate} Hz where {rate} Hz is expected")
        samples.append(audio)
    write(path, np.concatenate(samples), rate)
    return path
