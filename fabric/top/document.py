"""The view as a JSON document: all pages, with the fields of the hub and the values of the columns."""

from typing import Any, Final

from fabric.top import columns
from fabric.top.columns import Ready
from fabric.top.model import PAGES, Model, Row
from fabric.top.state import State

SCHEMA: Final = "fabric.top.v1"
HUB_RATES: Final = {
    "in_per_s": "messages_in",
    "out_per_s": "messages_out",
    "acked_per_s": "acked",
    "bytes_in_per_s": "bytes_in",
    "bytes_out_per_s": "bytes_out",
    "commits_per_s": "commits",
}


def fields(model: Model, state: State, url: str, now_s: float) -> dict[str, Any]:
    """The document without its schema. The filter is for the names of all pages, the order for the page of the state;
    other pages have their usual order."""
    lists = {}
    for page in PAGES:
        shown = state if page == state.page else State(page, wanted=state.filter)
        lists[page] = [_row(model, page, row, now_s) for row in shown.ordered(model, now_s)]
    rates = {name: rounded(model.rates.per_s(counter, now_s)) for name, counter in HUB_RATES.items()}
    return {"url": url, "time_us": model.now_us, "hub": {**model.hub, **rates}, **lists}


def _row(model: Model, page: str, row: Row, now_s: float) -> dict[str, Any]:
    values = {column.key: column.value(model, row, now_s) for column in columns.BY_PAGE[page][1:]}
    plain = {key: value.messages if isinstance(value, Ready) else rounded(value) for key, value in values.items()}
    return {**row.fields, **plain}


def rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
