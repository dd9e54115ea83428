"""For all tests: Ctrl-C is a signal that Python hears, also where the tests run in the background."""

import signal

# A shell lets programs that it starts with `&` ignore SIGINT, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
