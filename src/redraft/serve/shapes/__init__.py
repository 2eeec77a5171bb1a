"""What requests look like, one file per family of endpoints. Unknown fields are refused by name, everywhere."""
