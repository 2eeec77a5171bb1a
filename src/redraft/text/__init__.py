"""Text in and out: the tokenizer, the chat template, and the tool-call format."""
