"""The handler functions of `work` and `respond`: checks before the first message, and the log of failures."""

import inspect
import logging
from collections.abc import Callable
from typing import Any

from fabric_client.core.message import Message
from fabric_client.errors import Stale
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")


def caller(handler: Callable[..., Any] | None, *, coroutines: bool = True) -> Callable[[Message], Any]:
    """The handler as a function of one message; a handler that takes two arguments gets the message's context as well.
    Raises if the handler cannot be called with a message."""
    form = "handler(message) or handler(message, context)"
    required = check_handler(handler, form, 2, coroutines=coroutines, generators=False)
    assert handler is not None
    if required < 2:
        return handler
    if is_async(handler):

        async def call(message: Message) -> Any:
            return await handler(message, message.context)

        return call
    return lambda message: handler(message, message.context)


def check_handler(
    handler: Callable[..., Any] | None,
    form: str,
    most: int,
    *,
    what: str = "handler",
    coroutines: bool = True,
    generators: bool = True,
) -> int:
    """How many arguments a handler needs, `most` at most. Raises if it cannot be called in this form, or if a call
    alone would run none of its code."""
    if not callable(handler):
        raise FabricError(f"{what} {handler!r} is not a function", f"give a function: {form}")
    if not coroutines and is_async(handler):
        hint = f"give a plain function, {form}, or use the asyncio client: aconnect()"
        raise FabricError(f"the {what} is a coroutine function, which the blocking client does not run", hint)
    if not generators and _is_any(handler, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        hint = f"give a function without yield: {form}"
        raise FabricError(f"the {what} is a generator function: a call runs none of its code", hint)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 1
    parameters = signature.parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in plain if p.default is p.empty]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if named or len(required) > most or not (plain or takes_any):
        arguments = signature.replace(return_annotation=signature.empty)
        raise FabricError(f"the {what} takes {arguments}, which does not fit", f"it is called as {form}")
    return len(required)


def check_on_refresh(hook: Callable[..., Any] | None, *, coroutines: bool = True) -> None:
    """Raise unless `on_refresh` is None or a function of one argument, the refresh."""
    if hook is not None:
        form = "on_refresh(refresh)"
        check_handler(hook, form, 1, what="on_refresh", coroutines=coroutines, generators=False)


def check_ran(result: object) -> None:
    """Raise if a handler returned a coroutine or a generator that nothing runs, so that its message is not acked."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # so that Python does not warn of it too
        raise TypeError("the handler returned a coroutine, which the blocking client does not run; use aconnect()")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the handler returned a generator, which nothing runs")


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether a call of the handler returns a coroutine or an async generator, which the event loop must run."""
    return _is_any(handler, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def _is_any(handler: Callable[..., Any], *kinds: Callable[[object], bool]) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004  an object with an async __call__
    return any(kind(function) for kind in kinds for function in (handler, call))


def report(message: Message, error: Exception) -> None:
    """Log the failure of a handler or of its transaction. The verdict was given before."""
    if isinstance(error, Stale):
        log.warning("%s seq %d was taken back before it was done: %s", message.topic, message.seq, error)
    else:
        log.error("the handler failed on %s seq %d, attempt %d", message.topic, message.seq, message.attempt,
                  exc_info=error)  # fmt: skip
