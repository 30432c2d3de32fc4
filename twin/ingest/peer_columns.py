"""What the columns of people's benchmark tables are called: generation and prefill rates, acceptance, where it was measured."""

from __future__ import annotations

import re

_RATE = r"( ?\(?(tok(en)?s?/s(ec)?|t/s|tps)\)?)?"
_EACH = r"per[ _-]?(stream|user|req(uest)?)|req|/stream|/user|/req"
_ALL = r"total|agg(regate)?|all|sum"
_TG, _SPEED = r"(tg|gen(eration)?|decode|decoding|output)", r"([ _]?(tps|speed|throughput|rate))?"
_ACCEPT = r"(accept(ance|ed)?|acc)"
#: meaning -> alternatives for the column name, lower case; the first meaning that matches wins
_NAMES: dict[str, tuple[str, ...]] = {
    "test": (r"test",),
    "model": (r"model", r"checkpoint"),
    "k": (r"k", r"draft[ _]?(length|len|tokens|k)", r"spec(ulative)?[ _]tokens", r"num_speculative_tokens", r"mtp"),
    "context": (
        r"(ctx|context|prompt|input|isl|depth|n_prompt)([ _]?(size|len|length|tokens|tok|depth))?( \((tokens|tok)\))?",
        r"pp size",
    ),
    "concurrency": (
        r"c|conc|(max_)?concurrency|streams|users|batch( size)?|(n_)?parallel|num_seqs|requests|pl|clients",
    ),
    "tg_stream": (
        rf"{_TG}{_SPEED}[ _]?\(?({_EACH})\)?{_RATE}",
        r"gen_tps_req",
        r"t/s \(req\)",
        r"(tok/s|t/s|tps)[ _/]?(per )?(stream|user|req(uest)?)",
        rf"per[ -]stream{_RATE}",
    ),
    "tg_total": (
        rf"{_TG}{_SPEED}[ _]?\(?({_ALL})\)?{_RATE}",
        r"t/s \(total\)",
        rf"({_ALL})[ _]?(tg|tok/s|t/s|tps|throughput|decode|gen){_RATE}",
        r"output_throughput",
    ),
    "tg": (rf"{_TG}{_SPEED}{_RATE}", rf"tg[0-9]+{_RATE}", r"gen_tps", r"tok(en)?s?/s(ec)?|t/s|tps"),
    "pp": (rf"(pp|prefill|prompt processing){_SPEED}{_RATE}", rf"pp[0-9]+{_RATE}", r"prefill_tps"),
    "accept_length": (rf"(mean )?{_ACCEPT}[ _]?(len(gth)?|tokens)", r"al", r"(tokens|tok)[ _/](per[ _])?step"),
    "accept_percent": (rf"(draft )?{_ACCEPT}[ _.]?(rate)? ?(\(?%\)?|pct|percent)",),
    "accept_rate": (rf"(avg )?(draft )?{_ACCEPT}[ _]rate",),
    "accept": (_ACCEPT,),
    "ttft": (r"(e2e_)?ttft( ?[_(]?(ms|s)\)?)?", r"time to first token( \((ms|s)\))?"),
    "step": (r"(verify )?step( time)?[ _]?\(?(ms|s)\)?", r"ms/step", r"itl[ _]?\(?(ms|s)\)?"),
    "tpot": (r"tpot[ _]?\(?(ms|s)\)?", r"ms/tok(en)?"),
    "output": (r"gen_tokens|output[ _]tokens|osl|n_gen|tg tokens",),
    "noise": (r"std|stddev|cv|noise",),
}
COLUMNS = {name: re.compile("|".join(f"(?:{p})$" for p in patterns)) for name, patterns in _NAMES.items()}


def meaning(column: str) -> str | None:
    """The meaning of a column name, or None."""
    return next((name for name, pattern in COLUMNS.items() if pattern.match(column)), None)
