"""How fast replicated services catch up, and how fast what they emit is written."""
