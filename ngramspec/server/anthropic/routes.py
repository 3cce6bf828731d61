"""Routes of Anthropic's Messages API."""

from __future__ import annotations

from ngramspec.server.anthropic.events import MessageEvents, message_json
from ngramspec.server.anthropic.plan import input_tokens, plan_message
from ngramspec.server.service import computes, generates, posts

ROUTES = [
    *posts(generates(plan_message, MessageEvents, message_json), "/v1/messages"),
    *posts(computes(input_tokens), "/v1/messages/count_tokens"),
]
