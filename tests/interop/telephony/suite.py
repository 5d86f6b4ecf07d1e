"""Telephones: lines of five carriers written from their pages, a caller and a signer that nobody here
wrote. Two of them call at a time: the offline agents of more share two cores badly."""

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
        self._pool = concurrent.futures.ThreadPoolExecutor(calls.AT_ONCE)
        self._replies = tempfile.TemporaryDirectory(prefix="antiphon-")
        self._calling = {}

    def twilio_signs_requests(self, folder):
        peers.signed_requests(self.binary, folder)

    def five_lines_hold_whole_calls(self, folder):
        results = asyncio.run(calls.all_calls(self.binary, [], self.judge))
        for _, told in results:
            print(f"     {told}", flush=True)
        passed = sum(passed is True for passed, _ in results)
        check(passed == 5, f"{passed} of 5")
        print("     5 of 5", flush=True)

    def streamdouble_interrupts_and_understands(self, folder):
        self._over("is clean")

    def streamdouble_does_so_over_a_line_that_loses_packets(self, folder):
        self._over("loses packets")

    def streamdouble_does_so_over_a_line_that_jitters(self, folder):
        self._over("jitters")

    def streamdouble_does_so_over_a_line_that_is_late(self, folder):
        self._over("is late")

    def _over(self, line):
        """What was understood of streamdouble's call over this line; all are begun with the first."""
        if not self._calling:
            self._calling = {
                name: self._pool.submit(self._call, 8790 + index, *flags)
                for index, (name, flags) in enumerate(peers.LINES.items())
            }
        reply = self._calling[line].result()
        print(f"     heard {peers.understands(self.judge, reply)!r}", flush=True)

    def _call(self, port, *flags):
        folder = pathlib.Path(self._replies.name) / str(port)
        folder.mkdir()
        return peers.interrupts(self.binary, folder, port, *flags)
