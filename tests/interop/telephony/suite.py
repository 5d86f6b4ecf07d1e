"""Telephones: lines of five carriers written from their pages, a caller and a signer that nobody here
wrote. All of them call at the same time."""

import asyncio
import concurrent.futures
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import peers  # noqa: E402
import run as calls  # noqa: E402
from judge import Judge  # noqa: E402
from talk import check  # noqa: E402


class TelephonyPeers:
    """Each public method is a scenario; it is given an empty folder."""

    def __init__(self, binary):
        self.binary = str(binary)
        self.judge = Judge()
        self._pool = concurrent.futures.ThreadPoolExecutor(3)
        self._running = {}

    def twilio_signs_requests(self, folder):
        self._start()
        peers.signed_requests(self.binary, folder)

    def streamdouble_interrupts_and_understands(self, folder):
        self._start()
        self._running["clean"].result()

    def streamdouble_does_so_over_a_bad_line(self, folder):
        self._start()
        self._running["bad"].result()

    def five_lines_hold_whole_calls(self, folder):
        self._start()
        results = self._running["lines"].result()
        for _, told in results:
            print(f"     {told}", flush=True)
        passed = sum(passed is True for passed, _ in results)
        check(passed == 5, f"{passed} of 5")

    def _start(self):
        """Has everybody call, once."""
        if self._running:
            return

        def interrupts(port, *flags):
            with tempfile.TemporaryDirectory() as folder:
                # A recogniser is one thread's.
                return peers.interrupts(self.binary, folder, Judge(), port, *flags)

        def whole_calls():
            return asyncio.run(calls.all_calls(self.binary, [], self.judge))

        self._running = {
            "lines": self._pool.submit(whole_calls),
            "clean": self._pool.submit(interrupts, 8790),
            "bad": self._pool.submit(interrupts, 8791, *peers.BAD_LINE),
        }
