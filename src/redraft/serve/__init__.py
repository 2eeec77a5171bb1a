"""The HTTP server: OpenAI's and Anthropic's APIs, live drafts, metrics, and a page that shows the canvas."""
