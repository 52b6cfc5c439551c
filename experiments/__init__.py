"""One declarative module per published table; imports bagwise, never the reverse."""
