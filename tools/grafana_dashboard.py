"""Write ngramspec/server/metrics/grafana.json: python tools/grafana_dashboard.py [--check]."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[1] / "ngramspec" / "server" / "metrics" / "grafana.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # columns of Grafana's grid
QUANTILES = (0.5, 0.9, 0.99)
POSITIONS = "0|1|2|3|5|7|11|15"  # enough to see how a draft decays
Json = dict[str, Any]
Query = tuple[str, str]  # expression, legend


def rate(metric: str, by: str = "", more: str = "") -> str:
    """Return the rate of a counter, summed over everything but the given labels."""
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({pick(metric, more)}[$__rate_interval]))"


def pick(metric: str, more: str = "") -> str:
    """Return a selector for the chosen instances."""
    return f'{metric}{{instance=~"$instance"{", " + more if more else ""}}}'


def share(part: str, whole: str) -> str:
    """Return a ratio that has no value where nothing happened."""
    return f"{part} / ({whole} > 0)"


def quantiles(metric: str) -> list[Query]:
    """Return queries for the quantiles of a histogram."""
    buckets = rate(f"{metric}_bucket", "le")
    return [(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in QUANTILES]


def panel(title: str, unit: str, queries: list[Query], text: str = "", **options: Any) -> Json:
    """Return a panel without its place.

    options: kind ("timeseries" or "stat"), width in columns, stack, max.
    """
    kind = options.get("kind", "timeseries")
    custom = {"fillOpacity": 12, "lineWidth": 1, "showPoints": "never"}
    if options.get("stack"):
        custom = {**custom, "fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}}
    defaults: Json = {"unit": unit, "min": 0, "custom": custom if kind == "timeseries" else {}}
    if "max" in options:
        defaults["max"] = options["max"]
    targets = [
        {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
        for i, (expr, legend) in enumerate(queries)
    ]
    return {
        "title": title,
        "description": text,
        "type": kind,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": STAT if kind == "stat" else SERIES,
        "targets": targets,
        "gridPos": {"w": options.get("width", 8), "h": 4 if kind == "stat" else 8},
    }


SERIES = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
STAT = {
    "colorMode": "value",
    "graphMode": "area",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
}
EMITTED = rate("vllm:generation_tokens_total")
ACCEPTED = rate("vllm:spec_decode_num_accepted_tokens_total")
DRAFTED = rate("vllm:spec_decode_num_draft_tokens_total")
DRAFTS = rate("vllm:spec_decode_num_drafts_total")
DECODES = rate("llamacpp:n_decode_total")


def glance() -> list[Json]:
    """Return what is looked at first."""
    running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
    failed = rate("vllm:request_success_total", more='finished_reason="error"')
    small = {"kind": "stat", "width": 4}
    return [
        panel("Tokens per second", "short", [(EMITTED, "")], **small),
        panel("Acceptance", "percentunit", [(share(ACCEPTED, DRAFTED), "")], max=1, **small),
        panel("Tokens per verified draft", "short", [(f"1 + {share(ACCEPTED, DRAFTS)}", "")],
              "Accepted draft tokens and the target's own.", **small),
        panel("Running", "short", [(f"sum({pick(running)})", "")], **small),
        panel("Waiting", "short", [(f"sum({pick(waiting)})", "")], **small),
        panel("Failed per second", "short", [(failed, "")], **small),
    ]  # fmt: skip


def throughput() -> list[Json]:
    """Return panels about tokens and requests."""
    reasons = rate("vllm:request_success_total", "finished_reason")
    cached = share(rate("vllm:prefix_cache_hits_total"), rate("vllm:prefix_cache_queries_total"))
    return [
        panel("Tokens per second", "short", [
            (EMITTED, "emitted"), (ACCEPTED, "of these from drafts"),
            (rate("llamacpp:prompt_tokens_total"), "prompt, read"),
        ]),
        panel("Requests per second", "short", [
            (rate("ngramspec:requests_total"), "submitted"), (reasons, "{{finished_reason}}"),
        ]),
        panel("Shares", "percentunit", [
            (share(ACCEPTED, EMITTED), "emitted tokens that drafts had guessed"),
            (cached, "prompt tokens found in the cache"),
        ], max=1),
    ]  # fmt: skip


def latency() -> list[Json]:
    """Return percentiles."""
    histograms = (
        ("Time to first token", "vllm:time_to_first_token_seconds"),
        ("Time between tokens", "vllm:inter_token_latency_seconds"),
        ("Whole request", "vllm:e2e_request_latency_seconds"),
        ("Time in the queue", "vllm:request_queue_time_seconds"),
    )
    return [panel(title, "s", quantiles(metric), width=6) for title, metric in histograms]


def sources() -> list[Json]:
    """Return panels by draft source."""
    drafted = rate("ngramspec:source_draft_tokens_total", "source")
    accepted = rate("ngramspec:source_accepted_tokens_total", "source")
    wasted = rate("ngramspec:source_wasted_tokens_total", "source")
    drafts = rate("ngramspec:source_drafts_total", "source")
    hits = rate("ngramspec:source_accepted_drafts_total", "source")
    seconds = rate("ngramspec:source_seconds_total", "source")
    calls = rate("ngramspec:source_calls_total", "source", 'call="propose"')
    return [
        panel("Acceptance", "percentunit", [(share(accepted, drafted), "{{source}}")], max=1),
        panel("Accepted and wasted tokens per second", "short", [
            (accepted, "{{source}} accepted"), (wasted, "{{source}} wasted"),
        ]),
        panel("Drafts", "percentunit", [
            (share(drafts, calls), "{{source}}: asked and drafted"),
            (share(hits, drafts), "{{source}}: drafted and hit"),
        ], max=1),
        panel("Time in the source per call of propose", "s",
              [(share(seconds, calls), "{{source}}")]),
        panel("Time saved since the start", "s", [
            (f"sum by (source) ({pick('ngramspec:source_saved_seconds')})", "{{source}}"),
        ], "An estimate; below zero where a source has lost time."),
        panel("Failures per second", "short", [
            (rate("ngramspec:source_failures_total", "source"), "{{source}}"),
        ], "A source that raises is off for the request."),
    ]  # fmt: skip


def positions() -> list[Json]:
    """Return panels about the length of drafts."""
    only = f'position=~"{POSITIONS}"'
    counted = rate("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", only)
    own = rate("ngramspec:source_accepted_tokens_per_pos_total", "source", 'position="0"')
    drafts = rate("ngramspec:source_drafts_total", "source")
    return [
        panel("Drafts accepted at a position", "percentunit", [
            (f"{counted} / on () group_left () ({DRAFTS} > 0)", "{{position}}"),
        ], "Of all verified drafts, by position in the draft.", max=1),
        panel("First token of a draft accepted", "percentunit", [
            (share(own, drafts), "{{source}}"),
        ], max=1),
        panel("Tokens per verified draft, drafted", "short",
              quantiles("ngramspec:draft_length_tokens")),
    ]  # fmt: skip


def pool() -> list[Json]:
    """Return panels about the shared pool."""
    changes = ("collisions", "replaced", "aged")
    ratios = (("in use", "pool_occupancy_ratio"), ("expected false hits", "pool_false_hit_ratio"))
    cells = (("cells", "pool_cells"), ("in use", "pool_used_cells"))
    by = " - {{instance}}"
    return [
        panel("Occupancy", "percentunit", [
            (pick(f"ngramspec:{name}"), title + by) for title, name in ratios
        ], max=1),
        panel("Cells", "short", [(pick(f"ngramspec:{name}"), title + by) for title, name in cells]),
        panel("Changes per second", "short", [
            (rate(f"ngramspec:pool_{name}_total"), name) for name in changes
        ], "collisions: entries overwritten by another n-gram; aged: freed for new ones."),
    ]  # fmt: skip


def engine() -> list[Json]:
    """Return panels about slots, queue, batch and process."""
    tokens = rate("vllm:iteration_tokens_total_sum")
    phases = rate("ngramspec:phase_seconds_total", "phase")
    return [
        panel("Slots and queue", "short", [
            (f"sum({pick('ngramspec:slots')})", "slots"),
            (f"sum({pick('ngramspec:slot_busy')})", "busy"),
            (f"sum({pick('ngramspec:queue_length')})", "waiting"),
        ]),
        panel("Tokens computed in a pass", "short", [
            (share(tokens, DECODES), "mean"), *quantiles("vllm:iteration_tokens_total"),
        ]),
        panel("Filled", "percentunit", [
            (share(tokens, f"({DECODES} * max({pick('ngramspec:batch_capacity_tokens')}))"),
             "room in a pass"),
            (share(rate("ngramspec:busy_slots_total"),
                   f"({DECODES} * max({pick('ngramspec:slots')}))"), "slots in a pass"),
        ], max=1),
        panel("Tokens per pass", "short", [
            (share(EMITTED, rate("ngramspec:slot_steps_total")), "of a slot"),
            (share(EMITTED, DECODES), "of all slots together"),
        ]),
        panel("Time of the engine", "s", [(phases, "{{phase}}")],
              "Seconds per second; 1 is a thread that never waits.", stack=True),
        panel("Tokens in the cache", "short", [
            (f"sum by (slot) ({pick('ngramspec:slot_cached_tokens')})", "slot {{slot}}"),
            (f"sum({pick('ngramspec:slot_capacity_tokens')})", "room of a slot"),
        ]),
        panel("Trouble per second", "short", [
            (rate("ngramspec:rollback_failures_total"), "rollbacks that failed"),
            (rate("vllm:num_preemptions_total"), "requests that had to wait for room in the cache"),
        ]),
        panel("Memory", "bytes", [(pick("process_resident_memory_bytes"), "{{instance}}")]),
    ]  # fmt: skip


def clients() -> list[Json]:
    """Return panels about what clients were refused, and who left."""
    return [
        panel("Errors per second", "short", [
            (rate("ngramspec:http_errors_total", "code"), "{{code}}"),
        ], "rate_limit_exceeded: a key's share is used up; server_overloaded: the queue, bodies "
              "or the wait for a slot; client_left: nobody got it."),
        panel("Cancelled requests per second", "short", [
            (rate("ngramspec:cancelled_requests_total", "reason"), "{{reason}}"),
        ], "client: it left. The others were ended by the server."),
        panel("Connections", "short", [
            (f"sum({pick('ngramspec:connections')})", "open"),
            (rate("ngramspec:dropped_connections_total", "reason"), "{{reason}}: closed/s"),
        ]),
    ]  # fmt: skip


ROWS = (
    ("At a glance", glance),
    ("Throughput", throughput),
    ("Latency", latency),
    ("Acceptance by source", sources),
    ("Accepted by position", positions),
    ("Pool", pool),
    ("Slots, queue, batch", engine),
    ("Clients", clients),
)


def placed() -> list[Json]:
    """Return all panels with ids and places, each row's under its title."""
    board: list[Json] = []
    y = 0
    for title, panels in ROWS:
        board.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})  # fmt: skip
        y, x, height = y + 1, 0, 0
        for each in panels():
            place = each["gridPos"]
            if x + place["w"] > WIDTH:
                y, x = y + height, 0
            place.update(x=x, y=y)
            x, height = x + place["w"], place["h"]
            board.append(each)
        y += height
    return [{"id": number, **each} for number, each in enumerate(board, 1)]


def variables() -> list[Json]:
    """Return the choice of data source and instances."""
    query = "label_values(ngramspec:slots, instance)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {"name": "instance", "label": "Instance", "type": "query", "datasource": DATASOURCE,
         "definition": query, "query": {"query": query, "refId": "instance"}, "refresh": 2,
         "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
         "current": {"text": "All", "value": "$__all"}},
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the dashboard."""
    return {
        "title": "ngramspec",
        "uid": "ngramspec",
        "description": "Speculative decoding with n-gram drafters: speed, acceptance, slots.",
        "tags": ["ngramspec", "llm"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "panels": placed(),
    }


def main() -> None:
    """Write the file, or with --check fail when it differs."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv:
        sys.exit(PATH.read_text() != text)
    PATH.write_text(text)


if __name__ == "__main__":
    main()
