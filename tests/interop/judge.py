#!/usr/bin/env python3
"""What a recogniser that is not ours hears in a WAV file: the wheel `moonshine-voice`, with its own
runtime, voice activity detection and tokeniser.

    judge.py FILE.wav        prints one line per stretch of speech: start, end (seconds), text
"""

import os
import re
import sys

import audio

UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


class Judge:
    """Loads the model once."""

    def __init__(self):
        from moonshine_voice import ModelArch, Transcriber, get_assets_path

        model = os.path.join(str(get_assets_path()), "tiny-en")
        self._transcriber = Transcriber(model, ModelArch.TINY)

    def stretches(self, path):
        """(start, end, text) of each stretch of speech between pauses of 0.6 s or more."""
        samples, rate = audio.read(path)
        heard = []
        for start, end in audio.voiced(samples, rate, join_s=0.6):
            if end - start < 0.15:
                continue
            # A bit of quiet around it: recognisers are trained on that.
            margin = [0.0] * int(rate * 0.3)
            piece = samples[max(0, int((start - 0.05) * rate)) : int((end + 0.05) * rate)]
            transcript = self._transcriber.transcribe_without_streaming(
                margin + piece.tolist() + margin, rate
            )
            text = " ".join(line.text.strip() for line in transcript.lines).strip()
            heard.append((start, end, text))
        return heard

    def text(self, path):
        """All that is said in a file."""
        return " ".join(text for _, _, text in self.stretches(path) if text)


def words(text):
    """Plain words: lower case, numbers below a hundred spelled out, no punctuation."""
    text = re.sub(r"[-–—:]", " ", text.lower())
    out = []
    for word in re.findall(r"[a-z']+|\d+", text):
        out.extend(spell(int(word)) if word.isdigit() else [word.replace("'", "")])
    return out


def spell(number):
    """A whole number in words; beyond 99 digit by digit."""
    if number < 20:
        return [UNITS[number]]
    if number < 100:
        tens, units = divmod(number, 10)
        return [TENS[tens - 2]] + ([UNITS[units]] if units else [])
    return [UNITS[int(digit)] for digit in str(number)]


def word_errors(said, heard):
    """Words that would have to change, and how many were said."""
    said, heard = words(said), words(heard)
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1], len(said)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: judge.py FILE.wav")
    for start, end, text in Judge().stretches(sys.argv[1]):
        print(f"{start:.2f}\t{end:.2f}\t{text}")


if __name__ == "__main__":
    main()
