"""OpenAI's Responses API, without anything kept between requests."""
