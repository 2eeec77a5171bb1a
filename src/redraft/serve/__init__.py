"""The HTTP server: OpenAI's and Anthropic's shapes, live drafts, metrics, and a page that shows the canvas."""
