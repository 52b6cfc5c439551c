"""Images: proposals, weak detection, tracking, CT."""
